"""Decides which requests are accepted: API keys, their limits, the server's own limits, and turns between keys."""
