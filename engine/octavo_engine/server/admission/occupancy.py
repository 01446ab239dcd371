"""The use of a limited amount, and an estimate of when some of it will be free."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

_MEMORY = 20.0
"""Seconds in use after which the weight of an observation has fallen to 1/e."""
_EVIDENCE = 4
"""Number of releases before the rate is known."""
_NEARLY_NOTHING = 1e-9


@dataclass(slots=True)
class Occupancy:
    """The number of requests or tokens in use, and the rate at which they are released.

    The rate is an exponentially weighted mean over the time in which some were in use, as idle time does not show how
    fast a full queue moves.
    """

    clock: Callable[[], float]
    used: int = 0
    _freed: float = 0.0
    _seconds: float = 0.0
    _returns: int = 0
    _seen_at: float = 0.0

    def take(self, amount: int) -> None:
        """Count `amount` more as in use."""
        self._pass_time()
        self.used += amount

    def release(self, amount: int, *, served: bool = True) -> None:
        """Count `amount` as free again. It counts towards the rate only if it was `served`, not rejected or aborted."""
        if amount:
            self._pass_time()
            self.used -= amount
            self._freed += amount * served
            self._returns += served

    def seconds_to_free(self, amount: float) -> float | None:
        """Return the seconds until `amount` is released at the present rate; None while no rate is known."""
        self._pass_time()
        if self._returns < _EVIDENCE or self._seconds <= 0:
            return None
        return amount * self._seconds / max(self._freed, _NEARLY_NOTHING)

    def _pass_time(self) -> None:
        now = self.clock()
        if self.used > 0:
            kept = math.exp((self._seen_at - now) / _MEMORY)
            self._freed *= kept
            self._seconds = self._seconds * kept + _MEMORY * (1 - kept)
        self._seen_at = now
