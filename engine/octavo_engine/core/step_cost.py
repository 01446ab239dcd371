"""The duration of steps, learned from earlier ones: a time without prompts, and a time for each prompt token."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

FEW_TOKENS = 16  # a step of at most this many prompt tokens counts as one without prompts
FIRST_TOKENS = 64  # prompt tokens of a step that must not take too long, while it is not known what they cost
FIRST_CONTEXT = 32_768  # tokens of contexts that a step's decodes may read, while it is not known what they cost
LEAST_CONTEXT = 8_192  # the same, however slow the device is
SHORT_STEP = 0.5  # seconds that a stream can wait for its next token
_DECODES = 4  # a step may take this many times as long as one that decodes a short sequence
_WEIGHT = 0.1
_LATEST = 4
_WEIGHTY_CHUNK = 128  # steps of fewer prompt tokens weigh less in the average of `token_seconds`


@dataclass(slots=True)
class StepCost:
    """Moving averages of step durations; 0 until a step was measured."""

    decode_seconds: float = 0.0  # a step without prompts
    token_seconds: float = 0.0  # a prompt's token, in addition
    _latest: deque[float] = field(default_factory=lambda: deque(maxlen=_LATEST))
    """Seconds a prompt token in each of the latest steps with prompts: of its whole time if it was a short one."""
    context_limit: float = FIRST_CONTEXT  # tokens of contexts that a step's decodes may read, and as many its chunks
    _least_token_seconds: float = float("inf")  # of a step with prompts, its whole time divided among their tokens
    _plain_seconds: float = 0.0  # a step without prompts, less the time for its tokens and their contexts

    def observe(self, prompt_tokens: int, seconds: float, decodes: int = 0, context: int = 0) -> None:
        """Learn from a step with `prompt_tokens` that took `seconds`; its `decodes` read `context` earlier tokens."""
        if prompt_tokens <= FEW_TOKENS:
            rest = max(0.0, seconds - prompt_tokens * self.token_seconds)
            self.decode_seconds = _moved(self.decode_seconds, rest, _WEIGHT)
            self._observe_context(seconds, prompt_tokens + decodes, context)
            return
        self._least_token_seconds = min(self._least_token_seconds, seconds / prompt_tokens)
        # Reading took less than the whole step. While all steps have prompts or drafts, nothing else raises the limit.
        self.context_limit = max(self.context_limit, context * SHORT_STEP / 2 / max(seconds, SHORT_STEP / 4))
        token_seconds = max(0.0, seconds - self.decode_seconds) / prompt_tokens
        self._latest.append(token_seconds or seconds / prompt_tokens)
        self.token_seconds = _moved(self.token_seconds, token_seconds, _WEIGHT * min(1, prompt_tokens / _WEIGHTY_CHUNK))

    def _observe_context(self, seconds: float, tokens: int, context: int) -> None:
        """Learn how much context may be read from a step of `tokens`: at most twice as much as it has read."""
        rest = max(0.0, seconds - tokens * self._least_token_seconds)
        if context <= LEAST_CONTEXT // 2:  # no step that the limit has cut reads so little
            self._plain_seconds = _moved(self._plain_seconds, rest, _WEIGHT)
            return
        self._plain_seconds = min(rest, self._plain_seconds or rest)
        reading, half = rest - self._plain_seconds, max(SHORT_STEP, _DECODES * self._plain_seconds) / 2
        within = context * half / max(reading, half / 2)
        if reading > half or within > self.context_limit:
            self.context_limit = max(LEAST_CONTEXT, within)

    def expected_seconds(self, prompt_tokens: int) -> float:
        """Predict the seconds of a step that computes this many prompt tokens; 0 while nothing is known."""
        return self.decode_seconds + prompt_tokens * self.token_seconds

    def tokens_within(self, seconds: float, budget: int) -> int:
        """Return how many of `budget` prompt tokens a step of at most `seconds` may hold; at least 2 * FEW_TOKENS."""
        if seconds == float("inf"):
            return budget
        if self.decode_seconds:  # else nothing decodes, and no client waits for its next token
            seconds = min(seconds, max(SHORT_STEP, _DECODES * self._plain_seconds, 2 * self.decode_seconds))
        if not (slowest := max(self._latest, default=0.0)):
            return min(budget, FIRST_TOKENS)
        return int(min(budget, max(2 * FEW_TOKENS, (seconds - self.decode_seconds) / slowest)))

    def doubling_tokens(self, budget: int) -> int:
        """Return how many of `budget` prompt tokens double a step's time; FEW_TOKENS until a decode was measured."""
        if not self.decode_seconds:
            return FEW_TOKENS
        return int(min(budget, self.decode_seconds / self.token_seconds)) if self.token_seconds else budget


def _moved(average: float, value: float, weight: float) -> float:
    return average + weight * (value - average) if average else value
