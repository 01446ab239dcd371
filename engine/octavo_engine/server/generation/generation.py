"""Runs the generation for one HTTP request: sends its sequences to the engine and yields their outputs."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from octavo_engine.core.request import FinishReason, Request
from octavo_engine.core.step import RequestOutput
from octavo_engine.engine.output_stream import OutputStream, size_of
from octavo_engine.errors import EngineDeadError
from octavo_engine.server.admission.limits import AdmittedRequest
from octavo_engine.server.admission.refusal import RefusedError
from octavo_engine.server.errors import APIError, answer_too_large, engine_dead
from octavo_engine.server.generation.sequence import Sequence, SequenceOutput
from octavo_engine.server.preparation.prepared import TextOptions
from octavo_engine.server.serving import Serving
from octavo_engine.server.telemetry.metrics import Outcome
from octavo_engine.server.telemetry.tracing import Answered, RequestSpan
from octavo_engine.text.tokenizer import Tokenizer

log = logging.getLogger("octavo.server")


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """The checked parameters of the generation for one HTTP request."""

    requests: tuple[Request, ...]
    """The engine's request for each sequence: the one for choice `c` of prompt `p` is at `p * n + c`."""
    n: int
    text: TextOptions
    arrival: float
    """When the HTTP request arrived (monotonic seconds)."""
    model: str
    """The name by which the client asked for the model."""

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts, each counted once however many choices it has."""
        return sum(len(request.prompt_token_ids) for request in self.requests[:: self.n])

    @property
    def max_tokens(self) -> int:
        """The largest number of tokens of each answer."""
        return self.requests[0].sampling.max_tokens


class Generation:
    """An asynchronous iterator over the outputs of all sequences until each has ended, to be read within `run()`.

    The request counts as running from the constructor on. Reading raises an APIError when a sequence fails.
    """

    def __init__(
        self,
        serving: Serving,
        tokenizer: Tokenizer,
        request: GenerationRequest,
        admitted: AdmittedRequest,
        shown_id: str,
        span: RequestSpan | None = None,
    ) -> None:
        self.request = request
        self.sequences = [
            Sequence(index, each, request.text, tokenizer, serving.metrics, request.arrival)
            for index, each in enumerate(request.requests)
        ]
        self._by_id = {sequence.request_id: sequence for sequence in self.sequences}
        self._outputs = OutputStream(self._by_id, serving.unread.hold(admitted.key))
        self._kept = 0
        """Bytes of outputs that are kept until more or all of the answer can be shown."""
        self._held_back: dict[int, int] = {}
        """For some sequences, the bytes of their outputs of which nothing has been shown yet."""
        self._serving = serving
        self._admitted = admitted
        self._shown_id, self._span = shown_id, span
        self._outcome: Outcome = "abort"
        """The outcome of sequences that have not ended when reading stops."""
        serving.running.add(self)

    @contextlib.asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Start the sequences in the engine; leaving the context aborts those that have not ended."""
        self._count_prompts()
        sent = time.monotonic()
        try:
            async with self._serving.engine.generate(self.request.requests, self._outputs):
                yield
        finally:
            self._outputs.close()
            for sequence in self.sequences:
                if not sequence.ended:
                    self._end(sequence, self._outcome)
            self._serving.metrics.longest_choice.observe(max(sequence.num_tokens for sequence in self.sequences))
            self._trace(sent)
            self._admitted.leave()
            self._serving.running.remove(self)

    def __aiter__(self) -> Generation:
        return self

    async def __anext__(self) -> SequenceOutput:
        while True:
            try:
                output = await anext(self._outputs)
            except EngineDeadError as error:  # this error and the next fail all sequences of the request
                self._outcome = "error"
                raise engine_dead(str(error)) from None
            except APIError as error:
                raise self._failed(error, self._kept) from None
            sequence = self._by_id[output.request_id]
            if sequence.ended:
                continue
            if (added := self._take(sequence, output)) is None:
                self._hold_back(sequence, size_of(output.token_ids, output.logprobs))
                continue
            if sequence.index in self._held_back:
                self._keep(-self._held_back.pop(sequence.index))
            if sequence.ended and output.finish_reason is None:  # ended by a stop string, unknown to the engine
                await self._serving.engine.abort([output.request_id])
            return added

    def keep(self, output: SequenceOutput) -> None:
        """Count an output as kept until the answer is complete; an APIError if answers take too much memory."""
        prompt = size_of((), output.prompt_logprobs or ()) + len(output.pooled)
        self._keep(len(output.text) + size_of(output.token_ids, output.logprobs) + prompt)

    def count(self, size: int) -> None:
        """Count `size` bytes more, or fewer if negative, as unread; an APIError if answers take too much memory."""
        self._keep(size)

    def _hold_back(self, sequence: Sequence, size: int) -> None:
        """Count an engine output of which nothing can be shown yet, such as one of special tokens."""
        self._keep(size)
        self._held_back[sequence.index] = self._held_back.get(sequence.index, 0) + size

    def _keep(self, size: int) -> None:
        try:
            self._outputs.keep(size)
        except APIError as error:
            raise self._failed(error, self._kept + size) from None
        self._kept += size

    def _failed(self, error: APIError, kept: int) -> APIError:
        """Return the error for the client, and note it as the outcome of all sequences.

        An answer that alone takes too much memory is 400. But if much of it is unread, since the client reads a stream
        too slowly, it remains 429 or 503: the same answer to a client that reads it in time is possible.
        """
        unread = self._serving.unread
        if isinstance(error, RefusedError) and error.alone and kept > unread.share * 7 // 8:
            error = answer_too_large(unread.share)
        self._outcome = _outcome_of(error)
        return error

    def fail(self, error: APIError) -> None:
        """End the request with `error`, after the outputs that can be read already."""
        self._outputs.fail(error)

    def _take(self, sequence: Sequence, output: RequestOutput) -> SequenceOutput | None:
        """Return the part of the answer that an engine output adds, if any; an APIError ends only this request."""
        if (output.token_ids or output.finish_reason == FinishReason.LENGTH) and not sequence.begun:
            self._admitted.begin()
        self._admitted.count_output(len(output.token_ids))
        try:
            added = sequence.take(output)
        except APIError as error:
            if error.detail.code == "engine_error":
                log.error("request %s: its sequence %d (%s): %s", *self._names(sequence), error)
            if (outcome := _outcome_of(error)) == "error":
                self._end(sequence, outcome)  # the request's other choices are aborted
            else:
                self._outcome = outcome  # a timeout or a shutdown ends all of the request's choices
            raise
        except Exception:
            log.exception("request %s: its sequence %d (%s) failed", *self._names(sequence))
            self._end(sequence, "error")
            raise APIError(500, "the server failed because of a bug; see its log", code="internal_error") from None
        if added is not None and added.finish_reason is not None:
            if self.request.max_tokens:
                self._serving.admission.answered(sequence.num_tokens)
            cut = added.finish_reason == FinishReason.LENGTH and self.request.max_tokens > 0
            self._end(sequence, "length" if cut else "stop")
        return added

    def _end(self, sequence: Sequence, outcome: Outcome) -> None:
        self._admitted.end(sequence.begun)
        sequence.end(outcome)

    def _trace(self, sent: float) -> None:
        if self._span is None:
            return
        request = self.request
        self._span.answered(
            Answered(
                model=request.model,
                n=request.n,
                sampling=request.requests[0].sampling,
                sent=sent,
                prompt_tokens=request.prompt_tokens,
                cached_tokens=sum(sequence.cached_tokens for sequence in self.sequences[:: request.n]),
                sequences=[times for each in self.sequences if (times := each.times(sent)) is not None],
            )
        )
        failures = [each.outcome for each in self.sequences if each.outcome in ("error", "timeout")]
        if failures:
            self._span.failed(failures[0])

    def _count_prompts(self) -> None:
        metrics, request = self._serving.metrics, self.request
        metrics.choices.observe(request.n)
        metrics.max_tokens.observe(request.max_tokens)
        for each in request.requests[:: request.n]:
            metrics.prompt_length.observe(len(each.prompt_token_ids))
            metrics.prompt_tokens.add(len(each.prompt_token_ids))

    def _names(self, sequence: Sequence) -> tuple[str, int, str]:
        """Return a sequence's names for the log: its request's id for the client, its index, its own id."""
        return self._shown_id, sequence.index, sequence.request_id


def _outcome_of(error: APIError) -> Outcome:
    match error.detail.code:
        case "deadline_exceeded" | "queue_timeout":
            return "timeout"
        case "server_shutting_down":
            return "abort"
    return "error"
