"""The fields that an answer shares with all of its chunks, for chat and text completions alike."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from octavo_engine.server.connections.sse import DONE, event
from octavo_engine.server.generation.usage import Usage, UsageSoFar
from octavo_engine.server.openai.answers.objects import (
    ChatChoice,
    ChatChunkChoice,
    Completion,
    TextChoice,
    encode,
)
from octavo_engine.server.preparation.prepared import PreparedRequest
from octavo_engine.text.logprobs import PromptLogprobs

Choice = TypeVar("Choice", ChatChoice, ChatChunkChoice, TextChoice)


class Frame:
    """Writes choices, as events or as one JSON body, within an object that has the answer's id, model and time."""

    def __init__(self, name: str, prepared: PreparedRequest, prefix: str, kind: str, fingerprint: str) -> None:
        """Create the frame of one request. `name` is the model's own name, for a client that names no model."""
        self._with_usage, self._counts = prepared.include_usage, prepared.include_usage and prepared.continuous_usage
        self._empty = Completion(
            id=f"{prefix}-{uuid.uuid4().hex}",
            object=kind,
            created=int(time.time()),
            model=prepared.model or name,
            choices=[],
            usage=None if prepared.include_usage else UNSET,
            system_fingerprint=fingerprint,
            service_tier="default" if kind == "chat.completion" else UNSET,
        )

    def chunk(self, choice: Choice, usage: UsageSoFar, prompt_token_ids: Sequence[int] | UnsetType = UNSET) -> bytes:
        """Return the event of a chunk, with the usage so far if the client asked for it in each chunk."""
        if self._counts:
            return event(self.full([choice], usage(), prompt_token_ids=prompt_token_ids))
        return event(encode(msgspec.structs.replace(self._empty, choices=[choice], prompt_token_ids=prompt_token_ids)))

    def closing(self, usage: Usage) -> list[bytes]:
        """Return the events that end a stream: one with only the usage, if the client asked for it, and [DONE]."""
        return [event(self.full([], usage)), DONE] if self._with_usage else [DONE]

    def full(
        self,
        choices: Sequence[Choice],
        usage: Usage,
        *,
        prompt_logprobs: PromptLogprobs | UnsetType = UNSET,
        prompt_token_ids: Sequence[int] | UnsetType = UNSET,
    ) -> bytes:
        """Return the JSON body with all choices."""
        return encode(
            msgspec.structs.replace(
                self._empty,
                choices=list(choices),
                usage=usage,
                prompt_logprobs=prompt_logprobs,
                prompt_token_ids=prompt_token_ids,
            )
        )
