"""Watches of the cluster, and regular looks at what no watch reports."""
