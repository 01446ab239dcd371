"""A queue in shared memory: rank 0 of a model sends messages to all other ranks, and each rank reports its state.

The memory is anonymous (memfd_create(2)), so nothing is left behind however the processes end. The first page holds the
count of bytes sent. Then follows a page for each rank, which only that rank writes: numbers in words of 8 bytes, then
the text of its error. The rest is a ring buffer for messages; a message may be longer than the ring.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Callable

_WORD = 8
_PAGE = 4096
_RING = 4 << 20
_BEATS, _READ, _LOADED, _CODE, _LENGTH, _TOTAL, _FREE = range(7)
"""The words of a rank's page."""
_ERROR_TEXT = 64
"""The offset in a rank's page of the text of its error."""
_MILLIONTHS = 1_000_000

Waiting = Callable[[], None]


class SharedMemoryQueue:
    """A process's view of the queue of `size` ranks in the memory of the file descriptor `fd`, which ranks inherit."""

    def __init__(self, fd: int, size: int) -> None:
        self.size = size
        self._ring = _PAGE * (size + 1)
        self._memory = mmap.mmap(fd, self._ring + _RING)
        self._words = memoryview(self._memory).cast("Q")
        self._fence = threading.Lock()

    @staticmethod
    def create(size: int) -> int:
        """Create the memory of a queue for `size` ranks, and return its file descriptor."""
        fd = os.memfd_create("octavo-ranks")
        os.ftruncate(fd, _PAGE * (size + 1) + _RING)
        return fd

    def send(self, message: bytes, waiting: Waiting) -> None:
        """Send `message` to all ranks but 0, in the order of the calls; call `waiting` while the ring is full."""
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
            with self._fence:  # the lock is a memory barrier: a reader that sees the new count sees the bytes
                self._words[0] = sent = sent + count
            rest = rest[count:]

    def receive(self, rank: int) -> bytes:
        """Wait for the next message to `rank`, and return it."""
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
        """Count one more heartbeat of `rank`."""
        self._set(rank, _BEATS, self.beats(rank) + 1)

    def beats(self, rank: int) -> int:
        """Return the number of heartbeats of `rank` since its start."""
        return self._word(rank, _BEATS)

    def set_memory(self, rank: int, total: int, free: int) -> None:
        """Report the bytes that the device of `rank` has, and how many of them are free."""
        self._set(rank, _FREE, free)
        with self._fence:
            self._set(rank, _TOTAL, total)

    def memory(self, rank: int) -> tuple[int, int] | None:
        """Return the total and the free bytes of the device of `rank`; None until it has reported them."""
        with self._fence:
            total = self._word(rank, _TOTAL)
        return (total, self._word(rank, _FREE)) if total else None

    def set_loaded(self, rank: int, ratio: float) -> None:
        """Report how much of its shard `rank` has loaded, 0 to 1."""
        self._set(rank, _LOADED, int(ratio * _MILLIONTHS))

    def loaded(self) -> float:
        """Return the loaded part of all shards, 0 to 1."""
        return sum(self._word(rank, _LOADED) for rank in range(self.size)) / (self.size * _MILLIONTHS)

    def fail(self, rank: int, exit_code: int, message: str) -> None:
        """Report the error that `rank` ends with; a long message is cut."""
        text = message.encode()[: _PAGE - _ERROR_TEXT]
        start = self._page(rank) + _ERROR_TEXT
        self._memory[start : start + len(text)] = text
        self._set(rank, _LENGTH, len(text))
        with self._fence:
            self._set(rank, _CODE, exit_code)

    def failure(self, rank: int) -> tuple[int, str] | None:
        """Return the exit code and message of the error that `rank` has reported; None if there is none."""
        if not (code := self._word(rank, _CODE)):
            return None
        start = self._page(rank) + _ERROR_TEXT
        return code, self._memory[start : start + self._word(rank, _LENGTH)].decode(errors="replace")

    def _page(self, rank: int) -> int:
        return _PAGE * (rank + 1)

    def _word(self, rank: int, word: int) -> int:
        return self._words[self._page(rank) // _WORD + word]

    def _set(self, rank: int, word: int, value: int) -> None:
        self._words[self._page(rank) // _WORD + word] = value


class _Pause:
    """Sleeps longer the longer the wait lasts: plans come every few milliseconds, or not for hours."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    def __call__(self) -> None:
        waited = time.monotonic() - self._started
        time.sleep(20e-6 if waited < 0.005 else 200e-6 if waited < 1 else 2e-3)
