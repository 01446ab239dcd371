"""Decides how a rollout continues, and whether there is room for a surge. Pure."""
