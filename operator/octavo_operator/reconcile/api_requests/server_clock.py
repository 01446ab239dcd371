"""The API server's clock, by which times of objects are judged: a node's own may be wrong by hours.

Every answer of the API server says its time (RFC 9110, Date, in whole seconds). A difference of a few seconds is that
of rounding and of answers on their way, and not taken for one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

logger = logging.getLogger(__name__)

TOLERANCE_SECONDS = 5.0


class ServerClock:
    """This machine's clock (`local`: seconds since 1970) and how far it was off by the last answer."""

    def __init__(self, local: Callable[[], float] = time.time) -> None:
        self._local = local
        self._offset = 0.0

    def note_date(self, date: str | None, took: float = 0.0) -> None:
        """Note the Date of an answer that came after `took` seconds; values that are not dates are ignored.

        A slow answer may have been dated when its request arrived: a difference that its time explains says nothing.
        """
        try:
            offset = parsedate_to_datetime(date or "").timestamp() - self._local()
        except ValueError:
            return
        if TOLERANCE_SECONDS < abs(offset) <= TOLERANCE_SECONDS + took:
            return
        offset = offset if abs(offset) > TOLERANCE_SECONDS else 0.0
        if abs(offset - self._offset) > TOLERANCE_SECONDS:
            logger.warning(
                "this machine's clock differs from the API server's by %.0f s, and the API server's clock is used",
                offset,
            )
        self._offset = offset

    def now(self) -> str:
        """Return the API server's time, RFC 3339 in whole seconds."""
        moment = datetime.fromtimestamp(self._local(), UTC) + timedelta(seconds=self._offset)
        return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
