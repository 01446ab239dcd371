"""The limits of one API key: requestsPerMinute, tokensPerMinute and maxConcurrentRequests of --api-key-file.

Each token bucket holds a minute's amount and fills evenly. A request takes one from the bucket of requests when its
headers have arrived, whether or not it is served. Prompt tokens and generated tokens are taken from the bucket of
tokens, whose level may fall below zero: no answer is cut short, and over time the rate is kept exactly. Both buckets
are checked before the body is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Set
from dataclasses import dataclass, field

from octavo_engine.server.admission.auth import Key
from octavo_engine.server.admission.occupancy import Occupancy
from octavo_engine.server.admission.refusal import RefusedError, retry_after
from octavo_engine.server.admission.token_bucket import TokenBucket


@dataclass(slots=True)
class KeyMeter:
    """The use that one API key makes of its limits."""

    clock: Callable[[], float]
    requests: TokenBucket = field(init=False)
    tokens: TokenBucket = field(init=False)
    running: Occupancy = field(init=False)

    def __post_init__(self) -> None:
        self.requests, self.tokens = TokenBucket(self.clock), TokenBucket(self.clock)
        self.running = Occupancy(self.clock)

    def check(self, key: Key) -> None:
        """Raise RefusedError 429 if the key may not begin a request now."""
        self.requests.resize(key.requests_per_minute)
        if (seconds := self.requests.seconds_until(1)) > 0:
            detail = f"{key.requests_per_minute} requests a minute (requestsPerMinute of key {key.name})"
            raise RefusedError(429, "requests_per_minute", detail, math.ceil(seconds))
        self.check_tokens(key)
        limit = key.max_concurrent_requests
        if limit is not None and self.running.used >= limit:
            wait = retry_after(self.running.seconds_to_free(self.running.used - limit + 1))
            detail = f"{self.running.used} requests run already (maxConcurrentRequests {limit} of key {key.name})"
            raise RefusedError(429, "max_concurrent_requests", detail, wait)

    def check_tokens(self, key: Key) -> None:
        """Raise RefusedError 429 if the key has used up its tokens."""
        self.tokens.resize(key.tokens_per_minute)
        if (seconds := self.tokens.seconds_until(1)) > 0:
            detail = f"{key.tokens_per_minute} tokens a minute (tokensPerMinute of key {key.name})"
            raise RefusedError(429, "tokens_per_minute", detail, math.ceil(seconds))

    def headers(self) -> dict[str, str]:
        """Return the response headers about the key's limits a minute."""
        return _headers("Requests", self.requests) | _headers("Tokens", self.tokens)

    @property
    def unused(self) -> bool:
        """True if the meter is in the state of a new one."""
        return self.running.used == 0 and self.requests.full and self.tokens.full

    def begin(self) -> None:
        """Count a request whose headers have arrived."""
        self.running.take(1)
        self.requests.take(1)

    def end(self) -> None:
        """Note that a request has ended."""
        self.running.release(1)


class KeyLimits:
    """The meters of all keys that have sent a request. They are kept when the key file is read again."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._meters: dict[str, KeyMeter] = {}

    def meter(self, key: Key) -> KeyMeter:
        """Return the key's meter."""
        if (found := self._meters.get(key.name)) is None:
            found = self._meters[key.name] = KeyMeter(self._clock)
        return found

    def forget_others(self, names: Set[str]) -> None:
        """Drop the meters of keys other than these, except meters in use, as their keys may be added again."""
        self._meters = {name: meter for name, meter in self._meters.items() if name in names or not meter.unused}


def _headers(what: str, bucket: TokenBucket) -> dict[str, str]:
    """Return OpenAI's headers about a limit of requests or tokens: size, level, and time until it is full."""
    if bucket.size is None:
        return {}
    return {
        f"X-RateLimit-Limit-{what}": f"{bucket.size:.0f}",
        f"X-RateLimit-Remaining-{what}": f"{math.floor(round(max(0.0, bucket.level), 6))}",
        f"X-RateLimit-Reset-{what}": f"{bucket.seconds_until(bucket.size):.1f}s",
    }
