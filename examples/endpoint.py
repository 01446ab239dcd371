"""Connects the examples to OPENAI_BASE_URL with OPENAI_API_KEY, or to the server of `make serve`."""

from __future__ import annotations

import os

from openai import OpenAI


def connect() -> tuple[OpenAI, str]:
    """A client, and the first model that the endpoint lists."""
    client = OpenAI(
        base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
        api_key=os.environ.get("OPENAI_API_KEY", "none"),
    )
    return client, client.models.list().data[0].id
