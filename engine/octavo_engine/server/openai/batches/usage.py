"""Sums what the answers of a batch say about their tokens and their model, for the fields `usage` and `model`."""

from __future__ import annotations

import msgspec

from octavo_engine.server.openai.batches.objects import BatchObject, BatchUsage


class _Details(msgspec.Struct):
    cached_tokens: int = 0
    reasoning_tokens: int = 0


class _Usage(msgspec.Struct):
    """The usage of an answer under the names of any endpoint; those of responses are input and output."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None
    input_tokens_details: _Details | None = None
    output_tokens_details: _Details | None = None


class _AnswerBody(msgspec.Struct):
    model: str | None = None
    usage: _Usage | None = None


class _Response(msgspec.Struct):
    body: _AnswerBody


class WrittenLine(msgspec.Struct):
    """What is read of a line of an output or error file."""

    id: str
    response: _Response | None = None


read_line = msgspec.json.Decoder(WrittenLine).decode


class Tally:
    """The sums of one batch. Not for several threads at a time."""

    def __init__(self) -> None:
        self._usage: BatchUsage | None = None
        self._models: set[str] = set()

    def add(self, line: WrittenLine) -> None:
        """Add the usage of an answer; a line without one changes nothing."""
        body = line.response.body if line.response is not None else None
        if body is None or (used := body.usage) is None:
            return
        total = self._usage = self._usage or BatchUsage()
        sent, answered = used.prompt_tokens + used.input_tokens, used.completion_tokens + used.output_tokens
        total.input_tokens += sent
        total.output_tokens += answered
        total.total_tokens += sent + answered
        for details in (used.prompt_tokens_details, used.input_tokens_details):
            total.input_tokens_details.cached_tokens += details.cached_tokens if details is not None else 0
        for details in (used.completion_tokens_details, used.output_tokens_details):
            total.output_tokens_details.reasoning_tokens += details.reasoning_tokens if details is not None else 0
        self._models |= {body.model} if body.model is not None else set()

    def show(self, batch: BatchObject) -> None:
        """Set the fields of the batch."""
        batch.usage = self._usage
        batch.model = next(iter(self._models)) if len(self._models) == 1 else None
