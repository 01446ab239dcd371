"""Adaptive limits: how many requests run, and how much prefill a step holds, so that latency stays at its targets.

Two targets, both 90th percentiles: time to first token (TTFT) and inter-token latency (ITL). Two limits:

- the *chunk limit*, prefill tokens in a step. A step's time grows with them and every decoding request waits for it
  (Sarathi-Serve, OSDI 2024: a step's token budget is what keeps the time between tokens), and they are also the valve
  through which requests come to run. So it is the first to shrink when ITL is missed;
- the *running limit*, requests that run at once. It shrinks only once the chunk limit is at its floor.

How far: a missed ITL shrinks a limit by target / measured, and with room to spare it grows by its own square root, as
in Netflix's Gradient2 (github.com/Netflix/concurrency-limits) but with a given target instead of a learnt round-trip
time: gentle increase and multiplicative decrease, which converges (Chiu and Jain, 1989). Neither overshoots, since a
step's time grows at most in proportion to a limit. Between 90 % and 100 % of the target no limit changes, and after a
change only what was measured since then counts.

A missed TTFT wants both limits larger. They grow twice as fast then, but never beyond what ITL allows: tokens of
answers that are already being read come first. If a target is missed even so, `target_met` and `message` say so.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass
from itertools import accumulate
from math import isqrt

from octavo_engine.core.settings import StepLimits

log = logging.getLogger(__name__)

_PERIOD = 0.5
"""Seconds between two decisions, at least."""
_MIN_STEPS, _MAX_STEPS = 16, 256
_MIN_FIRST_TOKENS, _MAX_FIRST_TOKENS = 10, 64
"""Fewer samples decide nothing, more are not kept."""
_STALE_STEPS = 2
"""Steps whose times are ignored after a change: they were planned before it, as the loop plans one step ahead."""
_ROOM, _ROOM_WANTED = 0.9, 0.95
"""Limits grow while ITL takes less than this share of its target; the second while TTFT is missed."""
_LARGEST_CUT = 0.25  # the smallest ratio to which a limit shrinks at once
_WINDOW = 30.0
"""Seconds that a sample counts for; one that took longer than half of that counts for twice as long as it took."""
_PATIENCE = 10.0
"""Seconds that a target must be missed, or met again, before that is logged."""
_BLOCK = 16


@dataclass(slots=True)
class _Limit:
    """A limit between a floor and a ceiling, which changes by whole units."""

    value: int
    floor: int
    ceiling: int
    unit: int

    @property
    def units(self) -> int:
        return max(1, self.value // self.unit)

    def shrink(self, ratio: float) -> bool:
        """Shrink to `ratio` of the value, by one unit at least; return True if it shrank."""
        before = self.value
        units = min(int(self.units * max(ratio, _LARGEST_CUT)), self.units - 1)
        self.value = max(self.floor, units * self.unit)
        return self.value < before

    def grow(self, times: int, room: float) -> bool:
        """Grow by `times` the limit's square root in units, at most by its share `room`; True if it grew."""
        before = self.value
        units = max(1.0, min(times * isqrt(self.units), self.units * room))
        self.value = min(self.ceiling, before + int(units) * self.unit)
        return self.value > before


class _Samples:
    """The newest durations, each with a weight."""

    def __init__(self, least: int, most: int) -> None:
        self._least = least
        self._newest: deque[tuple[float, float, int]] = deque(maxlen=most)

    def __len__(self) -> int:
        return len(self._newest)

    def add(self, now: float, seconds: float, weight: int) -> None:
        self._newest.append((now, seconds, weight))

    def clear(self) -> None:
        self._newest.clear()

    def p90(self, now: float) -> float | None:
        """Return the weighted 90th percentile of the samples that are not too old; None if there are too few."""
        newest = self._newest
        while newest and now - newest[0][0] > max(_WINDOW, 2 * newest[0][1]):
            newest.popleft()
        if len(newest) < self._least:
            return None
        samples = sorted((seconds, weight) for _, seconds, weight in newest)
        reached = list(accumulate(weight for _, weight in samples))
        return samples[bisect_left(reached, 0.9 * reached[-1])][0]


class AdaptiveLimits(StepLimits):
    """Moves `running_limit` within [1, max_running] and `chunk_limit` within [16, max_chunk] tokens.

    It has no clock and no randomness: the same calls give the same limits. A step costs O(1); a decision, at most two a
    second, sorts 320 numbers at most. A target of None is ignored; with both None the limits never change.
    """

    def __init__(
        self, max_running: int, max_chunk: int, *, ttft_p90: float | None = None, itl_p90: float | None = None
    ) -> None:
        """`ttft_p90` and `itl_p90` are targets in seconds. Both limits begin at their most."""
        super().__init__(running_limit=max_running, chunk_limit=max_chunk)
        self.ttft_target, self.itl_target = ttft_p90, itl_p90
        self.ttft_p90: float | None = None
        """Seconds, as measured for the last decision; None without enough samples."""
        self.itl_p90: float | None = None
        """The same for inter-token latency."""
        self._running = _Limit(max_running, 1, max_running, 1)
        self._chunk = _Limit(max_chunk, min(_BLOCK, max_chunk), max_chunk, _BLOCK)
        self._first_tokens = _Samples(_MIN_FIRST_TOKENS, _MAX_FIRST_TOKENS)
        self._gaps = _Samples(_MIN_STEPS, _MAX_STEPS)
        self._stale_steps = 0
        self._decoding = 0
        self._now = 0.0
        self._next_decision = float("-inf")
        self._missed = False
        self._since = float("-inf")

    def on_first_token(self, seconds: float) -> None:
        """Record that a request's first token reached the host `seconds` after the request arrived."""
        if self.ttft_target is not None:
            self._first_tokens.add(self._now, seconds, 1)

    def on_token_gap(self, seconds: float, count: int) -> None:
        """Record that `count` requests got their next token in a step, `seconds` after the token before it."""
        self._decoding = count
        if count > 0 and self._stale_steps == 0 and self.itl_target is not None:
            self._gaps.add(self._now, seconds, count)

    def update(self, now: float) -> None:
        """Change the limits if it is time to; called after each step, with the time in seconds."""
        self._now = now
        if self._stale_steps > 0:
            self._stale_steps -= 1
        elif now >= self._next_decision and (self.ttft_target is not None or self.itl_target is not None):
            self._next_decision = now + _PERIOD
            self._decide(now)

    def _decide(self, now: float) -> None:
        self.ttft_p90, self.itl_p90 = self._first_tokens.p90(now), self._gaps.p90(now)
        if self.itl_p90 is None and len(self._gaps) > 0:
            return  # too early to tell
        itl, ttft = _share(self.itl_p90, self.itl_target), _share(self.ttft_p90, self.ttft_target)
        shrunk = grown = False
        if itl > 1:
            shrunk = self._shrink(1 / itl)
        elif itl < (_ROOM_WANTED if ttft > 1 else _ROOM):
            grown = self._grow(2 if ttft > 1 else 1, room=1 / itl - 1 if itl > 0 else 1.0)
        if shrunk or grown:
            self.running_limit, self.chunk_limit = self._running.value, self._chunk.value
            self._gaps.clear()
            self._stale_steps = _STALE_STEPS
        self._judge(now, itl_stuck=itl > 1 and not shrunk, ttft_stuck=ttft > 1 and not grown, missed=max(itl, ttft) > 1)

    def _shrink(self, ratio: float) -> bool:
        if self._chunk.shrink(ratio):
            return True
        if self._decoding > self._running.value > self._running.floor:
            return True  # the last cut has no full effect yet, as requests above the limit run to their end
        self._running.value = max(self._running.floor, min(self._running.value, self._decoding))
        return self._running.shrink(ratio)

    def _grow(self, times: int, room: float) -> bool:
        """Grow the running limit first if it holds requests back, else the chunk limit; True if either grew."""
        limits = [self._chunk, self._running]
        if self._decoding >= _ROOM * self._running.value:
            limits.reverse()
        return limits[0].grow(times, room) or limits[1].grow(times, room)

    def _judge(self, now: float, *, itl_stuck: bool, ttft_stuck: bool, missed: bool) -> None:
        """Update `target_met` and `message`, once a target was missed, or met, for `_PATIENCE` seconds."""
        if missed != self._missed:
            self._missed, self._since = missed, now
        if now - self._since < _PATIENCE:
            return
        if not missed:
            self.target_met, self.message = True, ""
        elif itl_stuck or ttft_stuck:
            self.target_met, self.message = False, self._explain_itl() if itl_stuck else self._explain_ttft()

    def _explain_itl(self) -> str:
        return (
            f"--target-itl-p90 {self.itl_target:g} cannot be met: p90 is {self.itl_p90:.3g} s even with "
            f"{self._limits()}, the least there may be; a higher target, a faster device or a smaller model would help"
        )

    def _explain_ttft(self) -> str:
        missed = f"--target-ttft-p90 {self.ttft_target:g} cannot be met: p90 is {self.ttft_p90:.3g} s with "
        missed += self._limits()
        if self.running_limit == self._running.ceiling and self.chunk_limit == self._chunk.ceiling:
            return f"{missed}, the most there may be; more replicas or less load would help"
        return (
            f"{missed}, and --target-itl-p90 {self.itl_target:g} allows no more; a higher target for either, more "
            f"replicas or less load would help"
        )

    def _limits(self) -> str:
        return f"{self.running_limit} requests running and {self.chunk_limit} prefill tokens a step"


def _share(measured: float | None, target: float | None) -> float:
    """Return a latency as a share of its target; 0 if there is no measurement or no target."""
    return 0.0 if measured is None or target is None else measured / target


class TargetLog:
    """Logs once when the latency targets cannot be met, and once when they are met again."""

    def __init__(self) -> None:
        self._met = True

    def note(self, limits: StepLimits) -> None:
        """Log if `target_met` has changed since the last call."""
        if limits.target_met == self._met:
            return
        self._met = limits.target_met
        if limits.target_met:
            log.info("the latency targets are met again")
        else:
            log.warning("%s", limits.message)
