"""Starts, cancels and, after a restart of the server, resumes the batches of all API keys."""

from __future__ import annotations

import asyncio
import logging

from octavo_engine.server.admission.fair_pool import FairPool
from octavo_engine.server.console.line_rate import LineRate
from octavo_engine.server.errors import APIError, shutting_down
from octavo_engine.server.openai.batches.job import Job
from octavo_engine.server.openai.batches.line_answers import LineAnswers
from octavo_engine.server.openai.batches.objects import ENDED, BatchObject, ExpiresAfter, RequestCounts
from octavo_engine.server.openai.batches.protocol import BatchBody
from octavo_engine.server.openai.batches.storage import MAX_ACTIVE, Owned, Storage, StorageError, new_batch_id

log = logging.getLogger("octavo.server")

LINES_AT_ONCE, LINES_PER_SECOND = 100.0, 1.0
"""The rate at which the ends of batches are logged: a client may create and cancel hundreds in a second."""

_WINDOW = 24 * 3600
"""Seconds after which a batch that has not ended expires."""
_EXPIRY_SECONDS = 60.0
"""Seconds between two checks for files that have expired."""


class Batches:
    """All batches in `storage`; those that have not ended run between calls of `start` and `stop`."""

    def __init__(self, storage: Storage, answers: LineAnswers) -> None:
        self.storage = storage
        self.answers = answers
        self._jobs: dict[str, Job] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = False
        self._checks: FairPool[None] = FairPool(1, lambda: False)
        """The turns to check an input file: more at once would keep the threads of the process from other requests."""
        self._checks.add(None)
        self._ends = LineRate(LINES_AT_ONCE, LINES_PER_SECOND)

    def start(self) -> None:
        """Resume the batches that an earlier server has begun."""
        for owner in self.storage.owners:
            for batch in owner.active:
                self._run(owner, batch)
        expiring = asyncio.create_task(self._expire_files())
        self._tasks.add(expiring)
        expiring.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Stop all batches, so that the next server can resume them."""
        self._stopped = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def create(self, owner: Owned, body: BatchBody) -> BatchObject:
        """Create and start a batch; APIError if its file does not exist, or its key has too many batches or files."""
        if self._stopped:
            raise shutting_down()
        if (file := owner.files.get(body.input_file_id)) is None or file.purpose != "batch":
            message = f"input_file_id: there is no input file {body.input_file_id!r}; upload one with purpose batch"
            raise APIError(400, message, param="input_file_id", code="file_not_found")
        if (active := len(owner.active)) >= MAX_ACTIVE:
            message = f"{active} batches of this key have not ended, which is the limit; wait for one, or cancel it"
            raise APIError(429, message, code="too_many_batches", headers={"Retry-After": "60"})
        self.storage.check_number(owner)
        now, expiry = int(self.storage.clock()), body.output_expires_after
        batch = BatchObject(
            id=new_batch_id(),
            endpoint=body.endpoint,
            input_file_id=file.id,
            completion_window=body.completion_window,
            created_at=now,
            expires_at=now + _WINDOW,
            request_counts=RequestCounts(),
            metadata=body.metadata,
            output_expires_after=ExpiresAfter(seconds=expiry.seconds) if expiry is not None else None,
        )
        try:
            await self.storage.save(owner, batch)
        except APIError:
            owner.batches.pop(batch.id, None)
            raise
        if not self._stopped:  # else the next server runs it
            self._run(owner, batch)
        return batch

    async def cancel(self, batch: BatchObject) -> None:
        """Cancel a batch, unless that has been done, as a client that tries again cannot know.

        APIError 400 if it has ended otherwise, 503 if it runs no longer, since the server stops.
        """
        if batch.status == "cancelled":
            return
        if self._stopped and batch.status not in ENDED:
            raise shutting_down()
        if batch.status in ENDED or (job := self._jobs.get(batch.id)) is None:
            message = f"the batch is {batch.status} and cannot be cancelled any more"
            raise APIError(400, message, param="batch_id", code="batch_ended")
        if batch.status != "cancelling":
            await job.cancel()

    async def _expire_files(self) -> None:
        """Remove expired files, also those of keys that send no requests."""
        while True:
            for owner in self.storage.owners:
                try:
                    await self.storage.expire(owner)
                except StorageError:
                    pass  # it has been logged, and the next round tries again
                except Exception:  # one key's file must not keep the others from being removed
                    log.exception("files of the key %r that have expired cannot be removed", owner.name)
            await asyncio.sleep(_EXPIRY_SECONDS)

    def _run(self, owner: Owned, batch: BatchObject) -> None:
        job = self._jobs[batch.id] = Job(self.storage, owner, batch, self.answers, self._checks, self._ends)
        task = asyncio.create_task(job.run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: self._forget(batch.id))

    def _forget(self, batch_id: str) -> None:
        del self._jobs[batch_id]
