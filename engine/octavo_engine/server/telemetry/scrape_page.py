"""The page of /metrics, which a flood of scrapes does not render again for each of them."""

from __future__ import annotations

import time
from collections.abc import Callable

RENDERS_PER_SECOND = 10.0
BURST = 10.0
"""Scrapes that come at once and all get a new page."""


class ScrapePage:
    """Renders the page for each scrape, up to a token bucket's rate; scrapes beyond it get the newest page.

    Scrapes need no key, and rendering takes some milliseconds of the thread that answers probes. An object is
    for one thread only.
    """

    def __init__(self, render: Callable[[], bytes], clock: Callable[[], float] = time.monotonic) -> None:
        self._render, self._clock = render, clock
        self._level, self._filled_at = BURST, clock()
        self._page = b""

    def read(self) -> bytes:
        """Return the page: a new one, or one that is at most a tenth of a second old."""
        now = self._clock()
        self._level = min(BURST, self._level + (now - self._filled_at) * RENDERS_PER_SECOND)
        self._filled_at = now
        if self._level >= 1:
            self._page = self._render()
            self._level -= 1
        return self._page
