"""Writes the output file and the error file of a batch: a line for each request that has ended.

After a restart, their lines show which requests need not be answered again.
"""

from __future__ import annotations

import asyncio
import copy
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from octavo_engine.server.openai.batches.line_answers import Answer
from octavo_engine.server.openai.batches.objects import (
    BatchObject,
    LineFailure,
    LineResponse,
    OutputLine,
    encode,
)
from octavo_engine.server.openai.batches.storage import (
    Owned,
    Storage,
    StorageError,
    append,
    on_disk,
    result_ids,
    with_retries,
)
from octavo_engine.server.openai.batches.usage import Tally, WrittenLine, read_line

_OK = 200
_OUTPUT, _ERRORS = 0, 1
_LAST_WRITES = 2.0
"""Seconds for the writes under way when the server stops. A write that fails is tried again and again."""


class Results:
    """The output file and the error file of one batch. APIError 413 if the key's files have no room for a line."""

    def __init__(self, storage: Storage, owner: Owned, batch: BatchObject) -> None:
        self._storage, self._owner, self._batch = storage, owner, batch
        self._ids = result_ids(batch)
        self._sizes: list[int] = []
        self._writing = asyncio.Lock()
        self._writes: set[asyncio.Future[None]] = set()
        """Writes that have begun. A write continues if the batch line that waits for it is cancelled."""
        self._failed: StorageError | None = None
        """The error of a write that was given up. No later write is tried: each would wait as long."""
        self._tally = Tally()
        self.done: set[int] = set()
        """Numbers of the lines that have ended."""

    async def open(self) -> None:
        """Create both files, and count the lines that were written before a restart."""
        ended = []
        for file_id in self._ids:
            (await with_retries(partial(self._storage.create, self._owner, file_id))).close()
            found = await with_retries(partial(on_disk, _recover, self._owner.path(file_id), self._tally))
            self._tally = found.tally
            self._sizes.append(found.size)
            self._storage.free(self._owner, found.cut)
            ended.append(found.numbers)
        self.done = set().union(*ended)
        counts = self._batch.request_counts
        counts.completed, counts.failed = map(len, ended)
        self._tally.show(self._batch)

    async def add(self, number: int, custom_id: str, answer: Answer) -> None:
        """Append the answer to a line: to the output file if its status is 200, else to the error file."""
        response = LineResponse(answer.status, answer.request_id, msgspec.Raw(answer.body))
        which = _OUTPUT if answer.status == _OK else _ERRORS
        await self._append(which, number, OutputLine(self._id(number), custom_id, response, None))

    async def fail(self, number: int, custom_id: str, failure: LineFailure) -> None:
        """Append to the error file why a line was not answered."""
        await self._append(_ERRORS, number, OutputLine(self._id(number), custom_id, None, failure))

    async def close(self) -> None:
        """List both files in the batch. An empty one is removed. After a StorageError it can be called again."""
        await asyncio.gather(*self._writes, return_exceptions=True)
        batch = self._batch
        for name, file_id, size in zip(("output", "error"), self._ids, self._sizes, strict=False):
            if not size:
                await self._storage.discard(self._owner, file_id, 0)
                continue
            filename, expiry = f"{batch.id}_{name}.jsonl", batch.output_expires_after
            lifetime = expiry.seconds if expiry is not None else None
            await self._storage.add(self._owner, file_id, filename, size, "batch_output", lifetime)
            setattr(batch, f"{name}_file_id", file_id)

    async def stop(self) -> None:
        """Wait a moment for lines to be written. Those that are not written then will be answered again."""
        if self._writes:
            await asyncio.wait(self._writes, timeout=_LAST_WRITES)
        for write in self._writes:
            write.cancel()
        await asyncio.gather(*self._writes, return_exceptions=True)

    def _id(self, number: int) -> str:
        return f"batch_req_{self._batch.id.removeprefix('batch_')}-{number}"

    async def _append(self, which: int, number: int, line: OutputLine) -> None:
        data = encode(line) + b"\n"
        self._storage.take(self._owner, len(data))
        self.done.add(number)  # at once: a line whose write has begun is not written a second time as expired
        write = asyncio.ensure_future(self._write(which, number, data))
        self._writes.add(write)
        write.add_done_callback(self._writes.discard)
        await asyncio.shield(write)

    async def _write(self, which: int, number: int, data: bytes) -> None:
        """Write a line and count it; a line that cannot be written has not ended."""
        try:
            async with self._writing:  # if a write fails, what it wrote is cut off, and that must be no other line
                self._tally.add(await self._written(self._owner.path(self._ids[which]), data))
        except BaseException:
            self._storage.free(self._owner, len(data))
            self.done.discard(number)
            raise
        self._sizes[which] += len(data)
        counts = self._batch.request_counts
        if which == _OUTPUT:
            counts.completed += 1
        else:
            counts.failed += 1
        self._tally.show(self._batch)

    async def _written(self, path: Path, data: bytes) -> WrittenLine:
        if self._failed is not None:
            raise self._failed
        try:
            return await with_retries(partial(on_disk, _append_to, path, data))
        except StorageError as error:
            self._failed = error
            raise


def _append_to(path: Path, data: bytes) -> WrittenLine:
    """Append to a file that is open only for this time: there may be very many batches, and each has two."""
    with path.open("ab", buffering=0) as file:
        append(file, data)
    return read_line(data)


@dataclass(frozen=True, slots=True)
class _Recovered:
    """What a file of results has after a restart."""

    tally: Tally
    """The sums of all files that have been read."""
    numbers: set[int]
    """The numbers of the lines that are complete."""
    size: int
    """The bytes of these lines."""
    cut: int
    """The bytes of an incomplete last line, which has been cut off the file."""


def _recover(path: Path, before: Tally) -> _Recovered:
    """Read the lines that were written before a restart, and cut off one that was not written completely.

    `before` has the sums of files read earlier. After an OSError this can be called again.
    """
    tally, numbers = copy.deepcopy(before), set[int]()
    size = 0
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                size += len(line)
                written = read_line(line)
                numbers.add(int(written.id.rpartition("-")[2]))
                tally.add(written)
    cut = path.stat().st_size - size
    os.truncate(path, size)
    return _Recovered(tally, numbers, size, cut)
