"""Decides how a rollout goes on, and whether there is room for a surge. Pure."""
