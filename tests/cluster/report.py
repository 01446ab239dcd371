"""Prints progress for the user who waits."""

import time
from collections.abc import Callable

Report = Callable[[str], None]
"""Takes one line, without its end."""

HEARTBEAT = 10.0
"""Seconds after which work that says nothing says that it goes on."""


def elapsed(since: float) -> str:
    """Time since `since` (from `time.monotonic()`), as a person writes it: `7 s`, `2 min 05 s`."""
    minutes, seconds = divmod(round(time.monotonic() - since), 60)
    return f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"
