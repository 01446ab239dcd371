"""Memory that all ranks of a model share: what the first one sends to all, and a place for each one's news.

It is anonymous (memfd_create(2)), so that nothing is left behind however the processes end. Numbers are words of 8
bytes, each written by one process alone; what is sent runs through a ring, so that a message may be longer than it.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Callable

_WORD = 8
_PLACE = 4096
"""Bytes for each rank; the first page has the count of bytes sent."""
_RING = 4 << 20
_BEAT, _READ, _LOADED, _CODE, _LENGTH, _TOTAL, _FREE = range(7)
"""Words of a rank's place, which its last words follow."""
_LAST_WORDS = 64
_MILLIONTHS = 1_000_000

Waiting = Callable[[], None]


class Board:
    """One process's view. `fd` is the memory's; a child gets it from its parent."""

    def __init__(self, fd: int, size: int) -> None:
        self.size = size
        self._ring = _PLACE * (size + 1)
        self._memory = mmap.mmap(fd, self._ring + _RING)
        self._words = memoryview(self._memory).cast("Q")
        self._fence = threading.Lock()

    @staticmethod
    def create(size: int) -> int:
        """The memory of a new board for `size` ranks."""
        fd = os.memfd_create("octavo-ranks")
        os.ftruncate(fd, _PLACE * (size + 1) + _RING)
        return fd

    def send(self, message: bytes, waiting: Waiting) -> None:
        """Give `message` to ranks 1.. in the order of the calls; `waiting` is called while one of them is behind."""
        rest = memoryview(len(message).to_bytes(_WORD, "little") + message)
        sent, pause = self._words[0], _Pause()
        while rest:
            room = _RING - (sent - min(self._word(rank, _READ) for rank in range(1, self.size)))
            if not room:
                waiting()
                pause()
                continue
            place = sent % _RING
            count = min(room, _RING - place, len(rest))
            self._memory[self._ring + place : self._ring + place + count] = rest[:count]
            with self._fence:  # a lock's barrier: whoever sees the new count sees the bytes
                self._words[0] = sent = sent + count
            rest = rest[count:]

    def receive(self, rank: int) -> bytes:
        """The next message to `rank`, however long it takes to come."""
        return self._take(rank, int.from_bytes(self._take(rank, _WORD), "little"))

    def _take(self, rank: int, length: int) -> bytes:
        taken, read, pause = bytearray(), self._word(rank, _READ), _Pause()
        while len(taken) < length:
            with self._fence:
                there = self._words[0] - read
            if not there:
                pause()
                continue
            place = read % _RING
            count = min(there, _RING - place, length - len(taken))
            taken += self._memory[self._ring + place : self._ring + place + count]
            read += count
            self._set(rank, _READ, read)
        return bytes(taken)

    def beat(self, rank: int) -> None:
        """`rank` lives."""
        self._set(rank, _BEAT, self.beats(rank) + 1)

    def beats(self, rank: int) -> int:
        """How often `rank` has said that it lives."""
        return self._word(rank, _BEAT)

    def set_memory(self, rank: int, total: int, free: int) -> None:
        """The device of `rank` has so many bytes, of which so many are free."""
        self._set(rank, _FREE, free)
        with self._fence:
            self._set(rank, _TOTAL, total)

    def memory(self, rank: int) -> tuple[int, int] | None:
        """Bytes of the device of `rank`, all and free ones, if it has told."""
        with self._fence:
            total = self._word(rank, _TOTAL)
        return (total, self._word(rank, _FREE)) if total else None

    def set_loaded(self, rank: int, ratio: float) -> None:
        """`rank` has loaded so much of its part, 0 to 1."""
        self._set(rank, _LOADED, int(ratio * _MILLIONTHS))

    def loaded(self) -> float:
        """How much of all parts is loaded, 0 to 1."""
        return sum(self._word(rank, _LOADED) for rank in range(self.size)) / (self.size * _MILLIONTHS)

    def fail(self, rank: int, exit_code: int, message: str) -> None:
        """The last words of `rank`."""
        text = message.encode()[: _PLACE - _LAST_WORDS]
        start = self._place(rank) + _LAST_WORDS
        self._memory[start : start + len(text)] = text
        self._set(rank, _LENGTH, len(text))
        with self._fence:
            self._set(rank, _CODE, exit_code)

    def failure(self, rank: int) -> tuple[int, str] | None:
        """Exit code and message, if `rank` has failed."""
        if not (code := self._word(rank, _CODE)):
            return None
        start = self._place(rank) + _LAST_WORDS
        return code, self._memory[start : start + self._word(rank, _LENGTH)].decode(errors="replace")

    def _place(self, rank: int) -> int:
        return _PLACE * (rank + 1)

    def _word(self, rank: int, word: int) -> int:
        return self._words[self._place(rank) // _WORD + word]

    def _set(self, rank: int, word: int, value: int) -> None:
        self._words[self._place(rank) // _WORD + word] = value


class _Pause:
    """Sleeps that grow with the wait: plans come every few milliseconds or, when nobody asks, not for hours."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    def __call__(self) -> None:
        waited = time.monotonic() - self._started
        time.sleep(20e-6 if waited < 0.005 else 200e-6 if waited < 1 else 2e-3)
