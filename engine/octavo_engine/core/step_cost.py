"""The duration of steps, learned from earlier ones: a time without prompts, and a time for each prompt token."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

FEW_TOKENS = 16  # a step of at most this many prompt tokens counts as one without prompts
FIRST_TOKENS = 256  # prompt tokens of a step that must not take too long, while it is not known what they cost
SHORT_STEP = 0.5  # seconds that a stream can wait for its next token
_DECODES = 4  # a step may take this many times as long as its decodes alone; with less, prompts would hardly advance
_WEIGHT = 0.1
_LATEST = 4
_WEIGHTY_CHUNK = 128  # steps of fewer prompt tokens weigh less in the average of `token_seconds`


@dataclass(slots=True)
class StepCost:
    """Moving averages of step durations; 0 until a step was measured."""

    decode_seconds: float = 0.0  # a step without prompts
    token_seconds: float = 0.0  # a prompt's token, in addition
    _latest: deque[float] = field(default_factory=lambda: deque(maxlen=_LATEST))
    """Seconds a prompt token in each of the latest steps with prompts. If the step was no longer than a decode
    step, its whole time is divided among its prompt tokens."""

    def observe(self, prompt_tokens: int, seconds: float) -> None:
        """Learn from a step with `prompt_tokens` that took `seconds`."""
        if prompt_tokens <= FEW_TOKENS:
            rest = max(0.0, seconds - prompt_tokens * self.token_seconds)
            self.decode_seconds = _moved(self.decode_seconds, rest, _WEIGHT)
            return
        token_seconds = max(0.0, seconds - self.decode_seconds) / prompt_tokens
        self._latest.append(token_seconds or seconds / prompt_tokens)
        weight = _WEIGHT * min(1.0, prompt_tokens / _WEIGHTY_CHUNK)
        self.token_seconds = _moved(self.token_seconds, token_seconds, weight)

    def expected_seconds(self, prompt_tokens: int) -> float:
        """Predict the seconds of a step that computes this many prompt tokens; 0 while nothing is known."""
        return self.decode_seconds + prompt_tokens * self.token_seconds

    def tokens_within(self, seconds: float, budget: int) -> int:
        """Return how many of `budget` prompt tokens a step of at most `seconds` may hold; at least 2 * FEW_TOKENS."""
        if seconds == float("inf"):
            return budget
        if self.decode_seconds:  # else nothing decodes, and no client waits for its next token
            seconds = min(seconds, max(SHORT_STEP, _DECODES * self.decode_seconds))
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
