"""Watches of the cluster, and regular checks of what no watch reports."""
