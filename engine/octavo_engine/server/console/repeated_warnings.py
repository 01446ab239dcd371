"""Limits warnings that clients can cause at will: one of each kind in some seconds, with the number of omitted ones."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

INTERVAL = 10.0
"""Seconds between two lines of one kind."""
_KINDS = 100
"""The most formats that are limited; warnings of further ones are not."""


class RepeatedWarnings(logging.Filter):
    """A log filter that lets one warning of each format through in INTERVAL seconds.

    It must not be used for messages whose format clients can choose.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._logged_at: dict[str, float] = {}
        self._omitted: dict[str, int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True if a record is to be written; records that are not warnings always are."""
        if record.levelno != logging.WARNING:
            return True
        kind, now = str(record.msg), self._clock()
        last = self._logged_at.get(kind)
        if last is not None and now - last < INTERVAL:
            self._omitted[kind] += 1
            return False
        if last is None and len(self._logged_at) >= _KINDS:
            return True
        if omitted := self._omitted.get(kind):
            record.msg = f"{record.msg} (and {omitted} times more since the last such line)"
        self._logged_at[kind], self._omitted[kind] = now, 0
        return True


def limit_warnings_of_clients() -> None:
    """Limit warnings that requests cause: about connections, uvicorn's and our own, text workers, and --batch-storage.

    Has an effect once in a process.
    """
    for name in ("uvicorn.error", "octavo.connections", "octavo.text_workers", "octavo.storage"):
        log = logging.getLogger(name)
        if not any(isinstance(each, RepeatedWarnings) for each in log.filters):
            log.addFilter(RepeatedWarnings())
