"""The paths that need no API key, and those whose requests wait for the engine."""

from __future__ import annotations

OPEN_PATHS = frozenset({"/health", "/health/startup", "/health/ready", "/health/live", "/health/adapters", "/metrics"})
"""Paths that need no key, as the playground's static files; every other path needs one, whether it exists or not."""
POOLING = frozenset(
    {
        "/v1/embeddings",
        "/pooling",
        "/v1/score",
        "/score",
        "/v1/rerank",
        "/v2/rerank",
        "/rerank",
        "/v1/classify",
        "/classify",
    }
)
GENERATING = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"}) | POOLING
"""The paths whose requests wait for the engine."""
