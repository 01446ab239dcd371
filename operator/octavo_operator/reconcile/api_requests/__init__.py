"""Requests to the API server, their errors, and the limits that it sets."""
