"""The arrival time of a request, and its deadline after the shortest timeout that applies to it."""

from __future__ import annotations

import re
import time

from starlette.requests import Request

from octavo_engine.server.admission.refusal import retry_after
from octavo_engine.server.errors import APIError
from octavo_engine.server.preparation.prepared import MAX_TIMEOUT, MIN_TIMEOUT

_TIMEOUT_HEADER = "X-Request-Timeout"
_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_SHORTEST = 0.001
"""Seconds that a request still gets if its deadline passed while its prompt was tokenized."""


class Times:
    """The arrival and the deadline of a request, in monotonic seconds.

    Its timeout is the smallest of the header X-Request-Timeout, the server's limit and, once the body is read, the
    body's timeout.
    """

    def __init__(self, request: Request, longest: float) -> None:
        self.arrival = time.monotonic()
        self.deadline = self.arrival + min(_header_timeout(request) or longest, longest)

    def shorten(self, asked: float | None) -> None:
        """Bring the deadline forward if the body's timeout is shorter."""
        if asked is not None:
            self.deadline = min(self.deadline, self.arrival + asked)

    @property
    def left(self) -> float:
        """Seconds until the deadline; never 0."""
        return max(_SHORTEST, self.deadline - time.monotonic())


def out_of_time(code: str) -> APIError:
    """Return an APIError 503 for a request whose deadline has passed: `queue_timeout` or `deadline_exceeded`."""
    message = "the request took longer than its timeout; ask for less, or raise timeout or --request-timeout"
    # The second header keeps SDKs from trying again by themselves.
    return APIError(503, message, code=code, headers={"Retry-After": str(retry_after(None)), "X-Should-Retry": "false"})


def _header_timeout(request: Request) -> float | None:
    if (text := request.headers.get(_TIMEOUT_HEADER)) is None:
        return None
    seconds = float(text) if _SECONDS.fullmatch(text) else 0.0
    if not MIN_TIMEOUT <= seconds <= MAX_TIMEOUT:
        message = f"{_TIMEOUT_HEADER}: must be a number of seconds from {MIN_TIMEOUT} to {MAX_TIMEOUT}, such as 2.5"
        raise APIError(400, message, param=_TIMEOUT_HEADER)
    return seconds
