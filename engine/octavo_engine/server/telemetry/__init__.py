"""Metrics, the access log and traces of requests."""
