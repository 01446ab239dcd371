"""Builds and checks the two container images (`make images`, `make images-check`)."""
