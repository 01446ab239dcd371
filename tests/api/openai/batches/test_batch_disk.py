"""Batches whose disk fails for a moment, or for good, without a server."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from octavo_engine.server.console.line_rate import LineRate
from octavo_engine.server.openai.batches import job, results, storage
from octavo_engine.server.openai.batches.job import Job
from octavo_engine.server.openai.batches.line_answers import Answer
from octavo_engine.server.openai.batches.objects import BatchObject, RequestCounts
from octavo_engine.server.openai.batches.results import Results
from octavo_engine.server.openai.batches.storage import Owned, Storage, StorageError, new_batch_id, with_retries

ANSWER = Answer(200, "r", b'{"model": "m", "usage": {"prompt_tokens": 2, "completion_tokens": 1}}', 0.0)
LINE = '{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "Hi"}}\n'
Disk = tuple[Storage, Owned, BatchObject]


def full_disk(*_: object) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    """A folder with a batch that has an answer to the first of its lines."""
    monkeypatch.setattr(storage, "PAUSE", 0.0)
    monkeypatch.setattr(storage, "GIVE_UP", 0.02)
    kept = Storage(tmp_path, 1 << 20, lambda: False)
    owner, now = kept.of(""), int(time.time())
    batch = BatchObject(
        id=new_batch_id(), endpoint="/v1/completions", input_file_id="file-" + "0" * 32, completion_window="24h",
        created_at=now, expires_at=now + 1000, request_counts=RequestCounts(), metadata=None, status="in_progress",
    )  # fmt: skip
    owner.batches[batch.id] = batch

    async def answer() -> None:
        first = Results(kept, owner, batch)
        await first.open()
        await first.add(1, "a", ANSWER)

    asyncio.run(answer())
    owner.path(batch.input_file_id).write_text(LINE * 2)
    return kept, owner, batch


def run_job(disk: Disk, ends: LineRate) -> None:
    nothing: Any = None
    asyncio.run(Job(*disk, nothing, nothing, ends).run())


def test_answers_are_counted_once_if_the_disk_fails_while_they_are_read_after_a_restart(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch failed, and its answers were removed."""
    cut, fails = os.truncate, iter([True])

    def at_second(*args: Any) -> None:
        (full_disk if next(fails, False) else cut)(*args)

    monkeypatch.setattr(results, "os", SimpleNamespace(truncate=at_second))
    again = Results(*disk)
    asyncio.run(again.open())
    usage = disk[2].usage
    assert again.done == {1} and disk[2].request_counts.completed == 1
    assert usage is not None and usage.total_tokens == 3


def test_what_is_not_written_is_not_counted(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    before = disk[1].bytes
    monkeypatch.setattr(results, "append", full_disk)

    async def answer() -> None:
        again = Results(*disk)
        await again.open()
        for number in (2, 3):
            with pytest.raises(StorageError):
                await again.add(number, "a", ANSWER)
        assert again.done == {1}
        monkeypatch.undo()
        await again.close()

    asyncio.run(answer())
    owner, batch = disk[1:]
    assert owner.bytes == before > 0 and batch.request_counts.completed == 1
    assert batch.output_file_id is not None and owner.files[batch.output_file_id].bytes == before


def test_a_batch_that_was_to_be_cancelled_is_cancelled_in_memory(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(storage, "_write", full_disk)
    batch, ends = disk[2], LineRate(1, 0.0)
    for logged in (1, 1):
        batch.status = "cancelling"
        run_job(disk, ends)
        assert batch.status == "cancelled" and batch.cancelled_at and not batch.failed_at
        assert batch.errors is not None and batch.errors.data[0].code == "storage_unavailable"
        assert caplog.text.count("its end is not stored") == logged


def test_a_batch_that_expires_fails_at_once_if_its_input_file_is_gone(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> Any:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    monkeypatch.setattr(job, "read_request", gone)
    disk[2].expires_at = 0
    run_job(disk, LineRate(1, 0.0))
    assert disk[2].status == "failed" and disk[2].errors is not None
    assert disk[2].errors.data[0].code == "file_not_found"


def test_waiting_for_a_turn_takes_no_time_from_the_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(storage, "PAUSE", 0.0)
    monkeypatch.setattr(storage, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def fails(times: int) -> Callable[[], Coroutine[Any, Any, str]]:
        left = iter([True] * times)

        async def work() -> str:
            now[0] += storage.GIVE_UP
            if next(left, False):
                raise StorageError(OSError(errno.EIO, "failed"))
            return "done"

        return work

    assert asyncio.run(with_retries(fails(1))) == "done"
    with pytest.raises(StorageError):
        asyncio.run(with_retries(fails(2)))
