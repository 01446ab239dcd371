"""Limits on the bytes that the server holds in memory for its clients, for each API key and for all together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Literal

from octavo_engine.server.admission.auth import Key
from octavo_engine.server.admission.refusal import RefusedError, Rejection, retry_after

_RESERVED_PARTS = 256
"""If there are several keys, each may use a limit divided by this, even when other keys have used all of it."""


class BytesInUse:
    """The count and the limit of one kind of bytes that the server holds, such as request bodies.

    While several keys exist, each may hold a quarter of `total`, so that there is room for the others. A key that holds
    little may exceed `total`, which is not more than a quarter larger then.
    """

    def __init__(self, total: int, reason: Rejection, what: str, several_keys: Callable[[], bool]) -> None:
        self.total = total
        self.used = 0
        self._reason, self._what, self._several_keys = reason, what, several_keys
        self._by_key: Counter[str] = Counter()

    @property
    def share(self) -> int:
        """The most bytes that one key may hold now."""
        return self.total // 4 if self._several_keys() else self.total

    def hold(self, key: Key) -> Hold:
        """Return a Hold for one request of this key, which holds no bytes yet."""
        return Hold(self, key)

    def take(self, key: Key, size: int) -> None:
        """Count `size` bytes more; RefusedError if that exceeds the limit of the key or of all."""
        if not size:  # a request without a body needs no room, also when others have used up all of it
            return
        share, mine = self.share, self._by_key[key.name]
        if self.used + size > self.total and not self._is_reserved(mine + size, self.used + size):
            raise self._refused(
                503, f"{self.used} bytes of {self._what} are in use, and at most {self.total} are allowed"
            )
        if mine + size > share:
            raise self._refused(
                429, f"{mine} bytes of {self._what} are in use by this key, and at most {share} are allowed"
            )
        self._by_key[key.name] += size
        self.used += size

    def _is_reserved(self, mine: int, used: int) -> bool:
        """Return True if a key may come to `mine` bytes although all keys together then exceed the limit, by `used`."""
        return self._several_keys() and mine <= self.total // _RESERVED_PARTS and used <= self.total * 5 // 4

    def release(self, key: Key, size: int) -> None:
        """Count `size` bytes less."""
        self.used -= size
        self._by_key[key.name] -= size
        if not self._by_key[key.name]:
            del self._by_key[key.name]

    def _refused(self, status: Literal[429, 503], detail: str) -> RefusedError:
        error = RefusedError(status, self._reason, detail, retry_after(None))
        error.headers["Connection"] = "close"
        return error


class Hold:
    """The bytes that are held for one request."""

    def __init__(self, owner: BytesInUse, key: Key) -> None:
        self._owner, self._key = owner, key
        self._size = 0

    def add(self, size: int) -> None:
        """Hold `size` bytes more; RefusedError if that exceeds the limit of the key or of all."""
        try:
            self._owner.take(self._key, size)
        except RefusedError as error:
            error.alone = self._size + size > self._owner.share
            raise
        self._size += size

    def resize(self, size: int) -> None:
        """Change the held bytes to `size`; RefusedError, and no change, if that exceeds a limit."""
        if size > self._size:
            self.add(size - self._size)
        elif size < self._size:
            self._owner.release(self._key, self._size - size)
            self._size = size

    def release(self) -> None:
        """Release the held bytes. May be called more than once."""
        self.resize(0)
