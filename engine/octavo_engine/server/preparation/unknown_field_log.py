"""Logs the names of unknown fields that text workers have met, which do not know the API keys: a name may be one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

log = logging.getLogger("octavo.server")

_MOST_LOGGED = 100
"""Names that one server logs; clients could send any number of them."""


class UnknownFieldLog:
    """Logs each name once, and none that contains an API key."""

    def __init__(self, hide: Callable[[str], str]) -> None:
        """`hide` returns a text without API keys."""
        self._hide = hide
        self._logged: set[str] = set()

    def write(self, names: Sequence[str]) -> None:
        """Log those of the names that were not logged before."""
        for name in names:
            if name not in self._logged and len(self._logged) < _MOST_LOGGED and self._hide(name) == name:
                self._logged.add(name)
                log.warning(
                    "a request has the unknown field %r, which is ignored; this is logged once for each name", name
                )
