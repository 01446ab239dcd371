"""Octavo's engine: paged attention, continuous batching and an OpenAI-compatible API in one process tree."""

__version__ = "0.1.0"
