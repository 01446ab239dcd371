"""One sequence (a choice of a prompt) of an HTTP request: the engine's tokens become text for the client.

An output holds complete characters, no part of a stop string, and the log probabilities of exactly its tokens.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from octavo_engine.core.request import FinishReason, Request
from octavo_engine.core.step import RequestOutput
from octavo_engine.model_outputs import PromptOutput, TokenLogprobs
from octavo_engine.server.errors import APIError, shutting_down, unavailable
from octavo_engine.server.generation.times import out_of_time
from octavo_engine.server.preparation.prepared import TextOptions
from octavo_engine.server.telemetry.metrics import Metrics, Outcome
from octavo_engine.server.telemetry.tracing import SequenceTimes
from octavo_engine.text.detokenizer import Detokenizer
from octavo_engine.text.tokenizer import Tokenizer

_FAILURES = (
    FinishReason.ABORT,
    FinishReason.TIMEOUT,
    FinishReason.ERROR,
    FinishReason.MEMORY,
    FinishReason.INVALID,
)


@dataclass(slots=True)
class SequenceOutput:
    """The part of a sequence's answer that one `RequestOutput` of the engine added."""

    index: int
    text: str
    logprobs: tuple[TokenLogprobs, ...] = ()
    """Log probabilities of the tokens of `text`, if the request asks for them."""
    finish_reason: str | None = None
    """"stop" or "length" on the last output."""
    stop_reason: int | str | None = None
    """The request's stop string or stop token id that ended the answer; None for the model's own end token."""
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    """On the first output: log probabilities of the prompt's tokens except the first, if the request asks for them."""
    pooled: bytes = b""
    """On the first output: the prompt's pooled vector, if the request asks for it."""
    token_ids: tuple[int, ...] = ()
    """All tokens since the output before, including the one that ended the answer."""


class Sequence:
    """The state of one sequence: its text, its log probabilities and its times."""

    def __init__(
        self,
        index: int,
        request: Request,
        options: TextOptions,
        tokenizer: Tokenizer,
        metrics: Metrics,
        arrival: float,
    ) -> None:
        self.index = index
        self.request_id = request.request_id
        self.num_tokens = 0
        self.cached_tokens = 0
        self.outcome: Outcome | None = None
        """How the sequence ended; None before its end."""
        self._metrics = metrics
        self._ends, self._include_stop, self._include_end = options.ends, options.include_stop, options.include_end
        self._arrival = arrival
        self._first_token_at = self._last_token_at = self._ended_at = 0.0
        self._queue_seconds = 0.0
        self._logprobs: list[TokenLogprobs] = []
        self._token_ids: list[int] = []
        self._end_logprobs = options.end_logprobs
        self._prompt: PromptOutput | None = None
        self._has_prompt = False
        self._detokenizer = Detokenizer(
            tokenizer,
            stop=options.stop,
            min_tokens=request.sampling.min_tokens,
            include_stop=options.include_stop,
            skip_special_tokens=options.skip_special_tokens,
        )

    @property
    def ended(self) -> bool:
        """True if the sequence is complete."""
        return self.outcome is not None

    @property
    def begun(self) -> bool:
        """True once the sequence has its first token, or, if max_tokens is 0, the output about its prompt."""
        return self._first_token_at > 0

    def take(self, output: RequestOutput) -> SequenceOutput | None:
        """Return the part of the answer that an engine output adds; None if nothing can be shown yet.

        Raises APIError if the sequence failed.
        """
        if output.finish_reason in _FAILURES:
            raise self._failure(output)
        self.cached_tokens = max(self.cached_tokens, output.cached_tokens)  # reported with the first token and the last
        self._observe(output)
        shown = output.token_ids if self._shows_stop(output) else output.token_ids[:-1]
        delta = self._detokenizer.push(shown, last=output.finish_reason is not None)
        counted = output.token_ids[: None if delta.stop is None else delta.tokens]
        self.num_tokens += len(counted)
        self._token_ids += counted
        self._logprobs += output.logprobs[: None if self._end_logprobs and delta.stop is None else delta.tokens]
        if output.prompt is not None and not self._has_prompt:
            self._prompt, self._has_prompt = output.prompt, True
        finish_reason = FinishReason.STOP.value if delta.stop is not None else output.finish_reason
        if not delta.text and finish_reason is None:
            return None
        logprobs, self._logprobs = tuple(self._logprobs), []
        token_ids, self._token_ids = tuple(self._token_ids), []
        prompt, self._prompt = self._prompt, None
        reason = delta.stop if delta.stop is not None else self._stop_token(output)
        added = SequenceOutput(self.index, delta.text, logprobs, finish_reason, reason, token_ids=token_ids)
        return added if prompt is None else replace(added, prompt_logprobs=prompt.logprobs, pooled=prompt.pooled)

    def _shows_stop(self, output: RequestOutput) -> bool:
        """Return True unless the output's last token ended the answer and does not belong to its text."""
        if output.stop_token is None:
            return True
        return self._include_end if self._stop_token(output) is None else self._include_stop

    def _stop_token(self, output: RequestOutput) -> int | None:
        """Return the token of the request's own stop_token_ids that ended the answer, if one did."""
        return None if output.stop_token in self._ends else output.stop_token

    def _failure(self, output: RequestOutput) -> APIError:
        match output.finish_reason:
            case FinishReason.TIMEOUT:
                return out_of_time("deadline_exceeded" if self.begun else "queue_timeout")
            case FinishReason.ABORT:
                return shutting_down()
            case FinishReason.MEMORY:
                error = unavailable(str(output.error), "out_of_memory_retry", 1)
                error.headers["X-Should-Retry"] = "false"  # the engine has tried it twice
                return error
            case FinishReason.INVALID:
                return APIError(400, f"the request cannot be answered: {output.error}", code="not_answerable")
        return APIError(
            500, f"the answer could not be computed: {output.error or 'no reason given'}", code="engine_error"
        )

    def _observe(self, output: RequestOutput) -> None:
        now = time.monotonic()
        if not output.token_ids and output.finish_reason != FinishReason.LENGTH:
            return
        if not self.begun:
            self._first_token_at = now
            self._queue_seconds = output.queue_seconds
            self._metrics.first_token.observe(now - self._arrival)
            self._metrics.queue.observe(output.queue_seconds)
        elif output.token_ids:
            self._metrics.between_tokens.observe((now - self._last_token_at) / len(output.token_ids))
        self._last_token_at = now
        self._metrics.generated_tokens.add(len(output.token_ids))

    def times(self, sent: float) -> SequenceTimes | None:
        """Return the times of a sequence that the engine got at `sent` (monotonic seconds), None if it has none yet."""
        if self.outcome is None or not self.begun:
            return None
        started = min(sent + self._queue_seconds, self._first_token_at)
        return SequenceTimes(started, self._first_token_at, self._ended_at, self.num_tokens, self.outcome)

    def end(self, outcome: Outcome) -> None:
        """Record how the sequence ended, and its times."""
        self.outcome = outcome
        self._ended_at = now = time.monotonic()
        self._metrics.finish(outcome)
        self._metrics.duration.observe(now - self._arrival)
        self._metrics.answer_length.observe(self.num_tokens)
        if not self.begun:
            return
        started = self._arrival + self._queue_seconds
        self._metrics.inference.observe(now - started)
        self._metrics.prefill.observe(self._first_token_at - started)
        self._metrics.decode.observe(now - self._first_token_at)
        if self.num_tokens > 1:
            self._metrics.per_token.observe((self._last_token_at - self._first_token_at) / (self.num_tokens - 1))
