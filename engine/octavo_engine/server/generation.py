"""One HTTP request's answers: hands its sequences to the engine and merges what comes back, in the order it comes.

A sequence's index is prompt * n + choice. Whoever iterates sees text that is fit to be shown: whole characters, nothing
of a stop string, and the log probabilities of exactly the tokens shown so far.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from types import TracebackType

from octavo_engine.core.request import FinishReason, Request, SamplingParams, TokenLogprobs
from octavo_engine.core.step import RequestOutput
from octavo_engine.errors import EngineDeadError
from octavo_engine.server.limits import Ticket
from octavo_engine.server.metrics import Metrics, Outcome
from octavo_engine.server.openai.errors import APIError, engine_dead, shutting_down
from octavo_engine.server.refusal import retry_after
from octavo_engine.server.serving import Serving
from octavo_engine.text.detokenizer import Detokenizer
from octavo_engine.text.tokenizer import Tokenizer

log = logging.getLogger("octavo.server")

_BUFFERED = 256
"""Pieces that wait for a slow client; the sequence's further tokens wait as ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """A checked request: nothing in it is a client's word any more."""

    prompts: list[list[int]]
    n: int
    sampling: SamplingParams
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    skip_special_tokens: bool = True
    cache_salt: str = ""
    ends: tuple[int, ...] = ()
    """The model's own end tokens among `sampling.stop_token_ids`: they are no stop_reason."""
    deadline: float
    """Monotonic seconds."""
    arrival: float
    """Monotonic seconds."""

    @property
    def prompt_tokens(self) -> int:
        """Each prompt counted once."""
        return sum(map(len, self.prompts))


@dataclass(frozen=True, slots=True)
class Piece:
    """What one sequence has to say."""

    index: int
    text: str
    logprobs: tuple[TokenLogprobs, ...] = ()
    """Of the tokens behind `text`, where they were asked for."""
    finish_reason: str | None = None
    """stop or length, on the last piece."""
    stop_reason: int | str | None = None
    """The stop string or token id of the request that ended it; None for the model's own end."""


class Sequence:
    """One sequence on its way: text, log probabilities and times."""

    def __init__(self, index: int, request: GenerationRequest, tokenizer: Tokenizer, metrics: Metrics) -> None:
        sampling = request.sampling
        self.index = index
        self.num_tokens = 0
        self.cached_tokens = 0
        self.finish_reason: str | None = None
        self._metrics = metrics
        self._ends = request.ends
        self._arrival = request.arrival
        self._begun_at = self._last_at = 0.0
        self._queue_seconds = 0.0
        self._logprobs: list[TokenLogprobs] = []
        self._detokenizer = Detokenizer(
            tokenizer,
            stop=request.stop,
            min_tokens=sampling.min_tokens,
            include_stop=request.include_stop,
            skip_special_tokens=request.skip_special_tokens,
        )

    @property
    def begun(self) -> bool:
        """Whether the first token has come."""
        return self._begun_at > 0

    def take(self, output: RequestOutput) -> Piece | None:
        """What the engine's news mean for the reader; None if nothing can be shown yet. APIError if it failed."""
        if output.finish_reason in (FinishReason.ABORT, FinishReason.TIMEOUT, FinishReason.ERROR):
            raise self._failure(output)
        self.cached_tokens = max(self.cached_tokens, output.cached_tokens)  # told with the first token and the last
        self._observe(output)
        shown = output.token_ids[:-1] if output.stop_token is not None else output.token_ids
        delta = self._detokenizer.push(shown, last=output.finish_reason is not None)
        self.num_tokens += delta.tokens + (len(output.token_ids) - len(shown) if delta.stop is None else 0)
        self._logprobs += output.logprobs[: delta.tokens]
        self.finish_reason = FinishReason.STOP.value if delta.stop is not None else output.finish_reason
        if not delta.text and self.finish_reason is None:
            return None
        logprobs, self._logprobs = tuple(self._logprobs), []
        reason = delta.stop if delta.stop is not None else self._stop_token(output)
        return Piece(self.index, delta.text, logprobs, self.finish_reason, reason)

    def _stop_token(self, output: RequestOutput) -> int | None:
        """The token of the request's own stop_token_ids that ended it."""
        return None if output.stop_token in self._ends else output.stop_token

    def _failure(self, output: RequestOutput) -> APIError:
        match output.finish_reason:
            case FinishReason.TIMEOUT:
                code = "deadline_exceeded" if self.begun else "queue_timeout"
                message = (
                    "the request took longer than its timeout; ask for less, or raise timeout or --request-timeout"
                )
                headers = {"Retry-After": str(retry_after(None)), "X-Should-Retry": "false"}  # people may, SDKs not
                return APIError(503, message, code=code, headers=headers)
            case FinishReason.ABORT:
                return shutting_down()
        return APIError(
            500, f"the answer could not be computed: {output.error or 'no reason given'}", code="engine_error"
        )

    def _observe(self, output: RequestOutput) -> None:
        now = time.monotonic()
        if not output.token_ids:
            return
        if not self.begun:
            self._begun_at = now
            self._queue_seconds = output.queue_seconds
            self._metrics.first_token.observe(now - self._arrival)
            self._metrics.queue.observe(output.queue_seconds)
        else:
            self._metrics.between_tokens.observe((now - self._last_at) / len(output.token_ids))
        self._last_at = now
        self._metrics.generated_tokens.add(len(output.token_ids))

    def close(self, outcome: Outcome) -> None:
        """The sequence has ended, one way or another."""
        now = time.monotonic()
        self._metrics.finish(outcome)
        self._metrics.duration.observe(now - self._arrival)
        self._metrics.answer_length.observe(self.num_tokens)
        if not self.begun:
            return
        started = self._arrival + self._queue_seconds
        self._metrics.inference.observe(now - started)
        self._metrics.prefill.observe(self._begun_at - started)
        self._metrics.decode.observe(now - self._begun_at)
        if self.num_tokens > 1:
            self._metrics.per_token.observe((self._last_at - self._begun_at) / (self.num_tokens - 1))


class Generation:
    """An asynchronous context manager, counted as running from the start; iterate inside of it.

    Leaving it aborts what has not ended.
    """

    def __init__(
        self, serving: Serving, tokenizer: Tokenizer, request: GenerationRequest, ticket: Ticket, shown_id: str
    ) -> None:
        self.request = request
        self._shown_id = shown_id
        self._serving = serving
        self._ticket = ticket
        self._id = uuid.uuid4().hex
        self._queue: asyncio.Queue[Piece | APIError] = asyncio.Queue(_BUFFERED)
        self.sequences = [
            Sequence(index, request, tokenizer, serving.metrics) for index in range(len(request.prompts) * request.n)
        ]
        self._tasks: list[asyncio.Task[None]] = []
        self._outcomes: dict[int, Outcome] = {}
        serving.running.add(self)

    async def __aenter__(self) -> Generation:
        metrics = self._serving.metrics
        metrics.choices.observe(self.request.n)
        metrics.max_tokens.observe(self.request.sampling.max_tokens)
        for prompt in self.request.prompts:
            metrics.prompt_length.observe(len(prompt))
            metrics.prompt_tokens.add(len(prompt))
        self._tasks = [asyncio.create_task(self._pump(sequence)) for sequence in self.sequences]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for sequence in self.sequences:
            sequence.close(self._outcomes.get(sequence.index, "abort"))
        self._ticket.leave()
        self._serving.running.remove(self)

    async def __aiter__(self) -> AsyncIterator[Piece]:
        """The pieces of all sequences until each has ended; APIError as soon as one fails."""
        left = len(self.sequences)
        while left:
            piece = await self._queue.get()
            if isinstance(piece, APIError):
                raise piece
            left -= piece.finish_reason is not None
            yield piece

    def fail(self, error: APIError) -> None:
        """End the request with `error`, after what its reader has been given already."""
        for task in self._tasks:
            task.cancel()
        while self._queue.full():
            self._queue.get_nowait()
        self._queue.put_nowait(error)

    async def _pump(self, sequence: Sequence) -> None:
        """Carry one sequence from the engine to the queue. What goes wrong is this request's alone."""
        last: Piece | APIError
        try:
            last = await self._carry(sequence)
            self._outcomes[sequence.index] = _outcome_of(last)
        except APIError as error:
            last = error
            self._outcomes[sequence.index] = _outcome_of(error)
            if error.detail.code == "engine_error":
                log.error("request %s: its sequence %d (%s): %s", self._shown_id, sequence.index, self._id, error)
        except EngineDeadError as error:
            last = engine_dead(str(error))
            self._outcomes[sequence.index] = "error"
        except Exception:
            log.exception("request %s: its sequence %d (%s) failed", self._shown_id, sequence.index, self._id)
            last = APIError(500, "the answer could not be put together", code="internal_error")
            self._outcomes[sequence.index] = "error"
        await self._queue.put(last)

    async def _carry(self, sequence: Sequence) -> Piece:
        """Queue all pieces but the last, which is returned: by then the sequence counts as ended."""
        begun = False
        try:
            async with contextlib.aclosing(self._serving.engine.generate(self._request_of(sequence.index))) as outputs:
                async for output in outputs:
                    if not begun and output.token_ids:  # an output without a token says how the request ended
                        begun = True
                        self._ticket.begin()
                    self._ticket.wrote(len(output.token_ids))
                    if (piece := sequence.take(output)) is None:
                        continue
                    if piece.finish_reason is not None:
                        self._serving.admission.answered(sequence.num_tokens)
                        return piece
                    await self._queue.put(piece)
        finally:
            self._ticket.end(begun)
        raise APIError(500, "the engine ended the answer without a reason", code="engine_error")

    def _request_of(self, index: int) -> Request:
        request = self.request
        prompt, choice = divmod(index, request.n)
        sampling = request.sampling
        if sampling.seed is not None and choice:
            sampling = replace(sampling, seed=(sampling.seed + choice) % (1 << 63))
        return Request(
            request_id=f"{self._id}-{index}",
            prompt_token_ids=tuple(request.prompts[prompt]),
            sampling=sampling,
            priority=self._ticket.priority,
            tenant=self._ticket.key.name,
            weight=self._ticket.key.weight,
            cache_salt=request.cache_salt,
            timeout=max(0.001, request.deadline - time.monotonic()),
            fork_of=f"{self._id}-{index - choice}" if choice else None,
        )


def _outcome_of(last: Piece | APIError) -> Outcome:
    if isinstance(last, Piece):
        return "length" if last.finish_reason == FinishReason.LENGTH else "stop"
    match last.detail.code:
        case "deadline_exceeded" | "queue_timeout":
            return "timeout"
        case "server_shutting_down":
            return "abort"
    return "error"
