"""The stream of the engine's outputs for some requests, in their order, for one reader."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Protocol

from octavo_engine.core.step import RequestOutput
from octavo_engine.errors import EngineDeadError
from octavo_engine.model_outputs import TokenLogprobs

_ALWAYS_ALLOWED = 64 << 10
"""Bytes of unread outputs that every stream may have: a reader that keeps up never has more, so it is never refused."""
# Upper estimates of the memory of Python's objects.
_OUTPUT_BYTES, _TOKEN_BYTES, _LOGPROBS_BYTES, _TOP_BYTES = 250, 40, 150, 120


class Room(Protocol):
    """A stream's share of the memory for unread outputs."""

    def resize(self, size: int) -> None:
        """Hold `size` bytes from now on; if that is too much, raise the error that the stream's reader gets."""


class OutputStream:
    """The outputs of one or several requests until each has ended; an asynchronous iterator.

    The engine client appends outputs without waiting for the reader. Unread outputs, and those that the reader keeps,
    take memory from `room`; when it has no more, the reader gets an error instead of them.
    """

    def __init__(self, request_ids: Iterable[str], room: Room | None = None) -> None:
        self.unfinished = set(request_ids)
        """Ids of the requests that have not ended."""
        self._unread: deque[RequestOutput | Exception] = deque()  # asyncio.Queue takes three times as long for a token
        self._arrival: asyncio.Future[None] | None = None
        """What the reader waits for while nothing is unread."""
        self._room = room
        self._waiting = 0
        """Bytes of outputs that are unread, or that the reader keeps."""
        self._failed = False

    def put(self, output: RequestOutput) -> None:
        """Append an output of one of the requests."""
        if self._failed:
            return
        try:
            self._count(_size(output))
        except Exception as error:  # noqa: BLE001  (any error of the room goes to the reader)
            self.fail(error)
            return
        if output.finish_reason is not None:
            self.unfinished.discard(output.request_id)
        self._append(output)

    def fail(self, error: Exception) -> None:
        """Raise `error` in the reader, unless all requests have ended.

        Outputs from before an EngineDeadError are still read. Before any other error unread outputs are dropped, as a
        slow reader would learn of the error too late.
        """
        if not self.unfinished or self._failed:
            return
        self._failed = True
        if not isinstance(error, EngineDeadError):
            self._clear()
        self._append(error)

    def keep(self, size: int) -> None:
        """Count `size` bytes more, or fewer if negative, of outputs that the reader keeps; the room's error if full."""
        self._count(size)

    def close(self) -> None:
        """Drop all outputs, because the client has gone or has its answer."""
        self._failed = True
        self._clear()

    def __aiter__(self) -> OutputStream:
        return self

    async def __anext__(self) -> RequestOutput:
        while not self._unread:
            if not self.unfinished:
                raise StopAsyncIteration
            self._arrival = asyncio.get_running_loop().create_future()
            await self._arrival
        item = self._unread.popleft()
        if isinstance(item, Exception):
            raise item
        self._count(-_size(item))
        return item

    def _append(self, item: RequestOutput | Exception) -> None:
        self._unread.append(item)
        if self._arrival is not None and not self._arrival.done():  # done: the reader has yet to run, or was cancelled
            self._arrival.set_result(None)

    def _clear(self) -> None:
        self._unread.clear()
        self._count(-self._waiting)

    def _count(self, size: int) -> None:
        before, after = self._waiting, self._waiting + size
        if self._room is not None and max(before, after) > _ALWAYS_ALLOWED:
            self._room.resize(max(0, after - _ALWAYS_ALLOWED))
        self._waiting = after


def _size(output: RequestOutput) -> int:
    """Return the bytes that an output takes, except a prompt's log probabilities, which have a limit of their own."""
    return _OUTPUT_BYTES + size_of(output.token_ids, output.logprobs)


def size_of(token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> int:
    """Return the bytes that an answer's token ids and log probabilities take."""
    size = _TOKEN_BYTES * len(token_ids)
    if logprobs:
        size += sum(_LOGPROBS_BYTES + _TOP_BYTES * len(each.top) for each in logprobs)
    return size
