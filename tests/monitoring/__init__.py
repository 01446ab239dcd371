"""Tests of dashboards and alerts on a real Prometheus."""
