"""Mixtures of experts: routers, the experts and their weights, the shared expert."""
