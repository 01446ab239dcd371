"""Searches for the saturation point of a server: above it, throughput does not grow, or requests queue up."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from octavo_client.figures import Level, Load, Saturation

_MOST_USERS = 4096
_GAIN = 1.05
"""The factor by which tokens/s must grow when users are doubled; if it is less, the search ends."""
_ENOUGH = 0.95
"""The share of the most tokens/s that the saturation point must have."""
_KEPT_UP = 0.85
"""Share of the second half's requests that must be answered while that half comes. It is below 1, as the number of
running requests fluctuates. With growing queues it is lower still: 0.77 at 1.3 times a server's capacity."""
_PRECISION = 1.1
"""The ratio of the upper to the lower bound at which a search between them ends."""
_MOST_STEPS = 16

Run = Callable[[Load], Awaitable[Level]]


@dataclass(slots=True)
class Search:
    """Measures loads until the saturation point is known. `max_ttft_p90` in ms is a limit of its own, if given."""

    run: Run
    max_ttft_p90: float | None = None
    levels: list[Level] = field(default_factory=list)

    async def users(self) -> Saturation:
        """Double the users until tokens/s hardly grow; the point is the fewest users with nearly the most tokens/s."""
        criterion = (
            f"the fewest users that get {_ENOUGH:.0%} of the most tokens/s; users are doubled until that brings less "
            f"than {_GAIN - 1:.0%} more, or requests fail{self._ttft_text()}"
        )
        users, best = 1, 0.0
        good: list[Level] = []
        while users <= _MOST_USERS:
            level = await self._measure(Load(users=users))
            if level.failed or self._too_slow(level):
                break
            good.append(level)
            if level.output_tokens_per_s < _GAIN * best:
                break
            users, best = users * 2, max(best, level.output_tokens_per_s)
        most = max((level.output_tokens_per_s for level in good), default=0.0)
        found = next((level for level in good if level.output_tokens_per_s >= _ENOUGH * most), None)
        return _saturation(found, Load(users=1), criterion)

    async def rate(self, start: float) -> Saturation:
        """Double (or halve) the rate from `start` requests/s until two bound the point, then search between them."""
        criterion = (
            f"the highest rate at which no request fails and, while the second half of the requests comes, at least "
            f"{_KEPT_UP:.0%} as many are answered{self._ttft_text()}; to within {_PRECISION - 1:.0%}"
        )
        low, high = 0.0, 0.0  # a rate that the server sustains, and one that it does not; 0 if none is known
        for _ in range(_MOST_STEPS):
            rate = start if not low and not high else (low * high) ** 0.5 if low and high else low * 2 or high / 2
            low, high = (rate, high) if await self._sustained(rate) else (low, rate)
            if low and high / low <= _PRECISION and high:
                break
        found = next((level for level in self.levels if level.rate == low), None)
        return _saturation(found, Load(rate=start), criterion)

    async def _measure(self, load: Load) -> Level:
        self.levels.append(await self.run(load))
        return self.levels[-1]

    async def _sustained(self, rate: float) -> bool:
        level = await self._measure(Load(rate=rate))
        return not level.failed and (level.kept_up or 0.0) >= _KEPT_UP and not self._too_slow(level)

    def _too_slow(self, level: Level) -> bool:
        return self.max_ttft_p90 is not None and not level.ttft_ms.p90 <= self.max_ttft_p90

    def _ttft_text(self) -> str:
        return "" if self.max_ttft_p90 is None else f", with TTFT p90 at most {self.max_ttft_p90:g} ms"


def _saturation(found: Level | None, kind: Load, criterion: str) -> Saturation:
    if found is None:
        return Saturation(None, kind.unit, None, criterion)
    return Saturation(found.load.value, kind.unit, found.output_tokens_per_s, criterion)


def sentence(saturation: Saturation) -> str:
    """Return a description of the saturation point and its criterion."""
    if saturation.value is None:
        return f"no saturation point: even the lowest load was too much (criterion: {saturation.criterion})"
    value = f"{saturation.value:.3g} {saturation.unit}, {saturation.output_tokens_per_s:.1f} tokens/s"
    return f"saturation point: {value}\ncriterion: {saturation.criterion}"
