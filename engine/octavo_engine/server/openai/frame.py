"""What an answer and all of its chunks have in common, whatever the endpoint."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from octavo_engine.server.openai.answers import ChatChoice, ChatChunkChoice, Completion, TextChoice, Usage, encode
from octavo_engine.server.prepared import PreparedRequest

Choice = TypeVar("Choice", ChatChoice, ChatChunkChoice, TextChoice)


class Frame:
    """Writes choices as JSON bodies with the request's id, model and time around them."""

    def __init__(self, name: str, asked: PreparedRequest, prefix: str, kind: str) -> None:
        """`name` is the model's own, for a client that names none."""
        self._empty = Completion(
            id=f"{prefix}-{uuid.uuid4().hex}",
            object=kind,
            created=int(time.time()),
            model=asked.model or name,
            choices=[],
            usage=None if asked.include_usage else msgspec.UNSET,
        )

    def chunk(self, choice: Choice) -> bytes:
        """What a chunk adds to one answer."""
        return encode(msgspec.structs.replace(self._empty, choices=[choice]))

    def full(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        """All answers; with none it is the chunk that ends a stream with its usage."""
        return encode(msgspec.structs.replace(self._empty, choices=list(choices), usage=usage))
