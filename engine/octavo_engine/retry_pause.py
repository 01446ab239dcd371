"""The pause before a failed attempt is repeated: it doubles at each failure, up to five minutes."""

from __future__ import annotations

_LONGEST_PAUSE = 300.0
_MOST_DOUBLINGS = 10
"""More doublings than the longest pause needs: after days of failures the power itself would overflow a float."""


def retry_pause(first: float, failures: int) -> float:
    """Return the seconds to wait after a failure that `failures` others came before; `first` without any."""
    return min(_LONGEST_PAUSE, first * 2.0 ** min(failures, _MOST_DOUBLINGS))
