"""The error of a request that a limit rejects: the limit's name for the metrics, and the time to try again."""

from __future__ import annotations

import math
import random
from typing import Literal

from octavo_engine.server.errors import APIError

Rejection = Literal[
    "queued_requests",
    "queued_tokens",
    "kv_commitment",
    "key_share",
    "requests_per_minute",
    "tokens_per_minute",
    "max_concurrent_requests",
    "deadline",
    "tokenizing",
    "slow_grammars",
    "uploads",
    "unread_answers",
    "accepted_bytes",
    "loading",
    "draining",
    "invalid",
    "unauthorized",
]
"""The values of label `reason` of octavo_requests_rejected_total."""
CLIENT_ERRORS: frozenset[Rejection] = frozenset({"invalid", "unauthorized"})
"""The reasons that have nothing to do with the load: an idle server would reject these requests too."""

_LONGEST_WAIT = 60


class RefusedError(APIError):
    """The error of a request that is rejected by a limit: 503 for the server's limits, 429 for the API key's."""

    def __init__(self, status: Literal[429, 503], reason: Rejection, detail: str, retry_after: int) -> None:
        whose = "the server is full" if status == 503 else "this API key's limit is reached"
        code = "server_overloaded" if status == 503 else "rate_limit_exceeded"
        message = f"{whose}: {detail}; try again in {retry_after} s"
        super().__init__(status, message, code=code, headers={"Retry-After": str(retry_after)})
        self.reason = reason
        self.alone = False
        """Whether the request exceeds the limit even if there is no other, so that it would be rejected again."""


def retry_after(seconds: float | None) -> int:
    """Return whole seconds for Retry-After, at most a minute, from an estimate, or without one (None) 1 to 3.

    The value is randomized, so that rejected clients do not all come back at the same time.
    """
    if seconds is None:
        return random.randint(1, 3)
    return math.ceil(max(1.0, min(_LONGEST_WAIT, seconds * random.uniform(1.0, 1.2))))
