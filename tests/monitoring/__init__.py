"""Dashboards and alerts against a real Prometheus."""
