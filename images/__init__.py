"""The two container images: `make images`."""
