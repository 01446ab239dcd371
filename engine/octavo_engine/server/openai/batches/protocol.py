"""The body of POST /v1/batches."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from octavo_engine.server.openai.bodies.body import StrictBody
from octavo_engine.server.openai.bodies.field_types import WHOLE, Metadata

Endpoint = Literal[
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/score",
    "/v1/rerank",
    "/v1/classify",
]
LEAST_LIFETIME, MOST_LIFETIME = 3600, 30 * 24 * 3600
"""The bounds of the time for which a file may be kept, in seconds."""


class OutputExpiry(StrictBody):
    """The time for which the files that a batch writes are kept."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=LEAST_LIFETIME, le=MOST_LIFETIME), WHOLE]


class BatchBody(StrictBody):
    """The body of POST /v1/batches: the file whose lines are answered, and the endpoint that answers them."""

    input_file_id: Annotated[str, Field(min_length=1, max_length=64)]
    endpoint: Endpoint
    completion_window: Literal["24h"]
    metadata: Metadata | None = None
    output_expires_after: OutputExpiry | None = None
