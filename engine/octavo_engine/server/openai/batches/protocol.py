"""The body of POST /v1/batches."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from octavo_engine.server.openai.protocol import StrictBody

Endpoint = Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"]
_ShortText = Annotated[str, Field(max_length=512)]


class BatchBody(StrictBody):
    """Which file's lines to answer, and where."""

    input_file_id: Annotated[str, Field(min_length=1, max_length=64)]
    endpoint: Endpoint
    completion_window: Literal["24h"]
    metadata: Annotated[dict[Annotated[str, Field(max_length=64)], _ShortText], Field(max_length=16)] | None = None
