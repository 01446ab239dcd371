"""Runs one batch to its end. Lines that were answered before a restart are not answered again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

from octavo_engine.server.admission.fair_pool import FairPool
from octavo_engine.server.console.line_rate import LineRate
from octavo_engine.server.errors import APIError
from octavo_engine.server.openai.batches.input_file import LinePlace, check_input, read_request, requests_after
from octavo_engine.server.openai.batches.line_answers import LineAnswers
from octavo_engine.server.openai.batches.objects import ENDED, BatchObject, LineError, LineErrors, LineFailure
from octavo_engine.server.openai.batches.results import Results
from octavo_engine.server.openai.batches.storage import GIVE_UP, Owned, Storage, StorageError, on_disk, with_retries
from octavo_engine.server.run_until import run_until

log = logging.getLogger("octavo.server")

LINES_AT_ONCE = 32
"""Lines of one batch that wait for their turn, or are being answered. Only the latter are in memory."""
_EXPIRED = LineFailure("batch_expired", "the batch reached the end of its completion window before this line's turn")

Read = TypeVar("Read")
End = Literal["completed", "failed", "expired", "cancelled"]


class _Line:
    """A line that waits for its turn. It is read only then."""

    def __init__(self, path: Path, place: LinePlace) -> None:
        self._path, self._place = path, place
        self.custom_id = ""
        """Known once the line has been read."""

    def read_body(self) -> bytes:
        """Return the body of the line's request. Blocks, so call it in a thread."""
        asked = _on_file(read_request, self._path, self._place)
        self.custom_id = asked.custom_id
        return bytes(asked.body)


def _on_file(read: Callable[..., Read], path: Path, *args: object) -> Read:
    """Return what `read` returns of an input file; APIError, which ends the batch, if the file is gone."""
    try:
        return read(path, *args)
    except FileNotFoundError:
        raise APIError(404, "the batch's input file is gone from the disk", code="file_not_found") from None


class Job:
    """Runs a batch. It ends early if it is cancelled, if its time is over, or if it cannot go on."""

    def __init__(
        self,
        storage: Storage,
        owner: Owned,
        batch: BatchObject,
        answers: LineAnswers,
        checks: FairPool[None],
        ends: LineRate,
    ) -> None:
        """Prepare the run. With `checks` input files of all batches are checked in turn; `ends` limits log lines."""
        self._storage, self._owner, self._batch, self._answers = storage, owner, batch, answers
        self._checks, self._ends = checks, ends
        self._results = Results(storage, owner, batch)
        self._input = owner.path(batch.input_file_id)
        self._cancelled = asyncio.Event()

    async def run(self) -> None:
        """Run the batch until it has ended and its end is stored. A cancelled run can be repeated later."""
        try:
            await self._run()
        except asyncio.CancelledError:
            await self._results.stop()
            raise
        except StorageError as error:
            await self._end_in_memory(error)

    async def _run(self) -> None:
        try:
            await self._results.open()
            if self._batch.status == "validating" and not await self._check():
                return
            end = await self._answer_in_time()
            await self._finish(end)
        except StorageError:
            raise
        except APIError as error:
            await self._fail([LineError(error.detail.code or "failed", error.detail.message)])
        except Exception:
            log.exception("%s failed", self._batch.id)
            await self._fail([LineError("internal_error", "the server failed because of a bug; see its log")])

    async def cancel(self) -> None:
        """End the batch as soon as possible; lines that are being answered are aborted."""
        self._batch.status, self._batch.cancelling_at = "cancelling", self._now()
        self._cancelled.set()
        await self._storage.save(self._owner, self._batch)

    async def _check(self) -> bool:
        """Check the input file; return True if all lines are valid, else the batch fails with the lines' errors."""
        if (checked := await with_retries(self._check_in_turn)) is None:
            return True
        total, errors = checked
        if errors:
            await self._fail(errors)
            return False
        self._batch.request_counts.total = total
        if self._batch.status == "validating":
            self._batch.status, self._batch.in_progress_at = "in_progress", self._now()
        await self._save()
        return True

    async def _check_in_turn(self) -> tuple[int, list[LineError]] | None:
        """Return what `check_input` does, or None if the batch is cancelled before its turn.

        The turn ends if the disk fails, so that a file that cannot be read does not delay the checks of other files.
        """
        if not await self._turn_to_check():
            return None
        try:
            if self._cancelled.is_set():
                return None
            return await on_disk(_on_file, check_input, self._input, self._batch.endpoint)
        finally:
            self._checks.release(self._owner.name, None)

    async def _turn_to_check(self) -> bool:
        """Wait for the turn to check the input file; False, and no turn is held, if the batch is cancelled before."""
        turn = await run_until(self._checks.acquire(self._owner.name), self._cancelled.wait())
        return not turn.cancelled()

    async def _answer_in_time(self) -> End:
        """Answer all lines, and return how the batch ended."""
        if self._batch.status == "cancelling":
            return "cancelled"
        left = max(0.0, self._batch.expires_at - self._storage.clock())
        answering = await run_until(self._answer_all(), self._cancelled.wait(), timeout=left)
        if answering.cancelled():
            return "cancelled" if self._cancelled.is_set() else "expired"
        answering.result()
        return "completed"

    async def _answer_all(self) -> None:
        """Answer the lines that have no answer yet; APIError if the batch cannot go on."""
        free = asyncio.Semaphore(LINES_AT_ONCE)
        try:
            async with asyncio.TaskGroup() as group:
                async for place in self._places():
                    if place.number not in self._results.done:
                        await free.acquire()
                        group.create_task(self._answer(place, free.release))
        except* APIError as errors:
            raise errors.exceptions[0] from None

    async def _places(self) -> AsyncIterator[LinePlace]:
        """Yield the places of the requests. The input file is open only while some of them are read."""
        last = LinePlace(0, 0, 0)
        while found := await with_retries(partial(on_disk, _on_file, requests_after, self._input, last)):
            for last in found:
                yield last

    async def _answer(self, place: LinePlace, release: Callable[[], None]) -> None:
        try:
            line = _Line(self._input, place)
            answer = await self._answers.ask(self._owner.name, self._batch.endpoint, line.read_body)
            await self._results.add(place.number, line.custom_id, answer)
        finally:
            release()

    async def _finish(self, end: End) -> None:
        if end == "expired":
            await self._expire_rest()
        if end == "completed":
            self._batch.status, self._batch.finalizing_at = "finalizing", self._now()
        await with_retries(self._results.close)
        await self._end(end)

    async def _expire_rest(self) -> None:
        """Write an error for each line that has no answer."""
        async for place in self._places():
            if place.number not in self._results.done:
                asked = await with_retries(partial(on_disk, _on_file, read_request, self._input, place))
                await self._results.fail(place.number, asked.custom_id, _EXPIRED)

    async def _fail(self, errors: list[LineError]) -> None:
        self._batch.errors = LineErrors(errors)
        await with_retries(self._results.close)
        await self._end("failed")

    async def _end(self, end: End) -> None:
        self._batch.status = end
        setattr(self._batch, f"{end}_at", self._now())
        await self._save()
        if not self._may_log_end():
            return
        counts = self._batch.request_counts
        log.info(
            "%s is %s: %d of %d lines were answered, %d with an error",
            self._batch.id,
            end,
            counts.completed + counts.failed,
            counts.total,
            counts.failed,
        )

    def _may_log_end(self) -> bool:
        """Return True if there is room for one more end in the log; then log how many there was no room for."""
        if not self._ends.admits():
            return False
        if omitted := self._ends.take_omitted():
            log.info("%d batches ended without a log line of their own: too many ended at once", omitted)
        return True

    async def _end_in_memory(self, error: StorageError) -> None:
        """End the batch although its end cannot be stored, as the disk has failed for long. A restart resumes it.

        For this its answers on the disk are kept, and count as its key's bytes.
        """
        await self._results.stop()
        if self._batch.status not in ENDED:
            end: End = "cancelled" if self._batch.status == "cancelling" else "failed"
            self._batch.errors = LineErrors([LineError(error.detail.code or "failed", error.detail.message)])
            self._batch.status = end
            setattr(self._batch, f"{end}_at", self._now())
        if not self._may_log_end():
            return
        log.error(
            "%s is %s, but its end is not stored, since the disk of --batch-storage has failed for %g s; a restart of "
            "the server resumes it",
            self._batch.id,
            self._batch.status,
            GIVE_UP,
        )

    async def _save(self) -> None:
        await with_retries(partial(self._storage.save, self._owner, self._batch))

    def _now(self) -> int:
        return int(self._storage.clock())
