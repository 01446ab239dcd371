"""What an answer and all of its chunks have in common, whatever the endpoint."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from octavo_engine.server.openai.answers import ChatChoice, ChatChunkChoice, Completion, TextChoice, Usage, encode
from octavo_engine.server.openai.protocol import GenerationBody
from octavo_engine.server.serving import Serving

Choice = TypeVar("Choice", ChatChoice, ChatChunkChoice, TextChoice)


class Frame:
    """Writes choices as JSON bodies with the request's id, model and time around them."""

    def __init__(self, serving: Serving, body: GenerationBody, prefix: str, kind: str) -> None:
        include_usage = bool(body.stream_options and body.stream_options.include_usage)
        self._empty = Completion(
            id=f"{prefix}-{uuid.uuid4().hex}",
            object=kind,
            created=serving.now(),
            model=body.model or serving.names[0],
            choices=[],
            usage=None if include_usage else msgspec.UNSET,
        )

    def chunk(self, choice: Choice) -> bytes:
        """What a chunk adds to one answer."""
        return encode(msgspec.structs.replace(self._empty, choices=[choice]))

    def full(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        """All answers; with none it is the chunk that ends a stream with its usage."""
        return encode(msgspec.structs.replace(self._empty, choices=list(choices), usage=usage))
