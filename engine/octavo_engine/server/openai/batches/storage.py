"""The folder of --batch-storage: each API key's files and batches, within a budget of bytes.

Below the folder each key has one of its own, with `files/ID` beside `files/ID.json`, and `batches/ID.json`. Their
records are in memory as well. Except at the start, files are read and written only in threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal, TypeVar

import msgspec

from octavo_engine.errors import ConfigurationError
from octavo_engine.server.errors import APIError, shutting_down
from octavo_engine.server.openai.batches.objects import ENDED, BatchObject, FileObject, encode

log = logging.getLogger("octavo.storage")

Kept = TypeVar("Kept", FileObject, BatchObject)
Done = TypeVar("Done")
MAX_FILES = 1000
MAX_BATCHES = 1000
MAX_RECORD_BYTES = 8 << 20
"""Bytes of the records of one key's batches, of which metadata and errors are the largest parts."""
MAX_TRANSFERS = 64
"""Files that one key may be uploading or reading at a time."""
MAX_ALL_TRANSFERS = 128
"""Files that all keys together may be uploading or reading at a time: each is open on the disk."""
RESERVED_TRANSFERS = 4
"""Files that each of several keys may be uploading or reading although other keys have used up MAX_ALL_TRANSFERS."""
MOST_OPEN = 2 * MAX_ALL_TRANSFERS
"""Files that are open for clients at a time, with the reserved ones: enough of these for 32 keys."""
MAX_ACTIVE = 16
"""Batches of one key that have not ended."""
_NO_KEY = "anyone"
PAUSE = 5.0
"""Seconds until a batch tries again to write where the disk was full."""
GIVE_UP = 600.0
"""Seconds of retries after which a batch ends, although its end could not be stored."""
_RETRY_AFTER = 30
_ID = re.compile(r"file-[0-9a-f]{32}", re.ASCII)


@dataclass(slots=True)
class Owned:
    """The files and batches of one API key."""

    folder: Path
    name: str
    """The key's name; empty for an API without keys."""
    files: dict[str, FileObject] = field(default_factory=dict)
    batches: dict[str, BatchObject] = field(default_factory=dict)
    record_bytes: dict[str, int] = field(default_factory=dict)
    """The size of each batch's record, as it is stored."""
    transfers: int = 0
    """The number of files that the key is uploading or reading."""
    bytes: int = 0
    """The bytes of the key's files, those that are being written included."""

    def path(self, file_id: str) -> Path:
        """Return the path of a file's content."""
        return self.folder / "files" / file_id

    def batch_path(self, batch_id: str) -> Path:
        """Return the path of a batch's record."""
        return self.folder / "batches" / f"{batch_id}.json"

    def forget_oldest(self, latest: BatchObject) -> list[str]:
        """Forget the oldest ended batches except `latest` while there are too many; return their ids."""
        forgotten: list[str] = []
        ended = [each.id for each in self.batches.values() if each.status in ENDED and each is not latest]
        while ended and (len(self.batches) > MAX_BATCHES or sum(self.record_bytes.values()) > MAX_RECORD_BYTES):
            forgotten.append(ended.pop(0))
            del self.batches[forgotten[-1]], self.record_bytes[forgotten[-1]]
        return forgotten

    @property
    def active(self) -> list[BatchObject]:
        """Batches that have not ended."""
        return [batch for batch in self.batches.values() if batch.status not in ENDED]


class Storage:
    """All keys' files and batches. ConfigurationError if the folder cannot be used, or another server uses it."""

    def __init__(
        self, folder: Path, size: int, several_keys: Callable[[], bool], clock: Callable[[], float] = time.time
    ) -> None:
        self.clock = clock
        self._folder, self._size, self._several_keys = folder, size, several_keys
        self._owners: dict[str, Owned] = {}
        self._bytes = self._transfers = 0
        """The sums of all keys: there may be thousands, and each part of an upload is counted."""
        self._saving = asyncio.Lock()
        self._changes, self._unchanged = 0, asyncio.Event()
        """The number of changes under way; set while there is none."""
        self._unchanged.set()
        self._stopped = False
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = (folder / ".lock").open("a")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for each in sorted(folder.iterdir()):
                if each.is_dir():
                    self._load(each)
        except BlockingIOError:
            raise ConfigurationError(
                f"--batch-storage {folder} is used by another server; give each server a folder of its own"
            ) from None
        except OSError as error:
            raise ConfigurationError(f"--batch-storage {folder} cannot be used: {error.strerror}") from None

    async def stop(self) -> None:
        """Let the changes under way end, and answer 503 to others: the next server would not see what they list."""
        self._stopped = True
        await self._unchanged.wait()

    def close(self) -> None:
        """Release the folder, so that another server may use it."""
        self._lock.close()

    def _check_open(self) -> None:
        """Raise APIError 503 if another server may use the folder already."""
        if self._stopped:
            raise shutting_down()

    @contextlib.contextmanager
    def _change(self) -> Iterator[None]:
        """Count a change of what the folder lists, for which `stop` waits; APIError 503 after `stop`."""
        self._check_open()
        self._changes += 1
        self._unchanged.clear()
        try:
            yield
        finally:
            self._changes -= 1
            if not self._changes:
                self._unchanged.set()

    @property
    def owners(self) -> list[Owned]:
        """All keys that have files or batches."""
        return list(self._owners.values())

    def of(self, key_name: str) -> Owned:
        """Return the files and batches of this key, which other keys cannot see."""
        if (found := self._owners.get(key_name)) is None:
            folder = self._folder / (f"key-{key_name}" if key_name else _NO_KEY)
            found = self._owners[key_name] = Owned(folder, key_name)
        return found

    def take(self, owner: Owned, size: int) -> None:
        """Count `size` bytes more of this key's files; APIError 413 if that is too much, 503 after `stop`."""
        self._check_open()
        share = self._size // 4 if self._several_keys() else self._size
        if owner.bytes + size > share or self._bytes + size > self._size:
            message = (
                f"the files of this key have {owner.bytes} bytes of the {share} that it may have, those of all keys "
                f"{self._bytes} of {self._size} (--batch-storage-size); delete files, or serve with a larger one"
            )
            raise APIError(413, message, code="storage_full")
        self._count(owner, size)

    def free(self, owner: Owned, size: int) -> None:
        """Count `size` bytes less of this key's files."""
        self._count(owner, -size)

    def _count(self, owner: Owned, size: int) -> None:
        owner.bytes += size
        self._bytes += size

    @contextlib.contextmanager
    def transfer(self, owner: Owned) -> Iterator[None]:
        """Count a file of the key as being uploaded or read; APIError 429 or 503 if there are too many."""
        headers = {"Retry-After": "5", "Connection": "close"}
        if owner.transfers >= MAX_TRANSFERS:
            message = f"{owner.transfers} files of this key are being uploaded or read, which is the limit"
            raise APIError(429, f"{message}; wait for one", code="too_many_transfers", headers=headers)
        reserved = self._several_keys() and owner.transfers < RESERVED_TRANSFERS and self._transfers < MOST_OPEN
        if self._transfers >= MAX_ALL_TRANSFERS and not reserved:
            message = f"{self._transfers} files are being uploaded or read, which is the limit; try again later"
            raise APIError(503, message, code="too_many_transfers", headers=headers)
        owner.transfers += 1
        self._transfers += 1
        try:
            yield
        finally:
            owner.transfers -= 1
            self._transfers -= 1

    def check_number(self, owner: Owned) -> None:
        """Raise APIError 429 if this key has as many files as it may."""
        if len(owner.files) >= MAX_FILES:
            message = f"this key has {len(owner.files)} files, those that batches have written included, which is the"
            headers = {"x-should-retry": "false"}
            raise APIError(429, f"{message} limit; delete some", code="too_many_files", headers=headers)

    async def create(self, owner: Owned, file_id: str) -> IO[bytes]:
        """Create a file of the key and return it, open for appending; it is not listed before `add`."""
        self._check_open()
        return await on_disk(_create, owner.path(file_id))

    async def add(
        self,
        owner: Owned,
        file_id: str,
        filename: str,
        size: int,
        purpose: Literal["batch", "batch_output"],
        lifetime: int | None = None,
    ) -> FileObject:
        """List a file of `size` bytes that was written and counted (`take`). It expires after `lifetime` seconds."""
        now = int(self.clock())
        until = now + lifetime if lifetime is not None else None
        file = FileObject(id=file_id, bytes=size, created_at=now, filename=filename, purpose=purpose, expires_at=until)
        with self._change():
            await on_disk(_write, owner.path(f"{file_id}.json"), encode(file))
            owner.files[file_id] = file
        return file

    async def expire(self, owner: Owned) -> None:
        """Remove the key's files that have expired, except those that a batch still reads; after `stop`, none."""
        if self._stopped:
            return
        now = self.clock()
        for file in [file for file in owner.files.values() if file.expires_at is not None and file.expires_at <= now]:
            read = {batch.input_file_id for batch in owner.active}
            if file.id in owner.files and file.id not in read:  # both may have changed while another was removed
                await self.discard(owner, file.id, file.bytes)

    async def discard(self, owner: Owned, file_id: str, size: int) -> None:
        """Remove a file whose `size` bytes were counted, listed or not. After a StorageError it is as it was.

        A file that is not listed, such as an upload that failed, is removed also after `stop`: no other server has it.
        """
        with self._change() if file_id in owner.files else contextlib.nullcontext():
            listed = owner.files.pop(file_id, None)
            try:
                await on_disk(_remove, [owner.path(f"{file_id}.json"), owner.path(file_id)])
            except StorageError:
                if listed is not None:
                    owner.files[file_id] = listed
                raise
        self.free(owner, size)

    async def save(self, owner: Owned, batch: BatchObject) -> None:
        """Store a batch's present state. If the key has too many batches, or their records too many bytes, the oldest
        ones that have ended are removed.
        """
        with self._change():
            await self._save(owner, batch)

    async def _save(self, owner: Owned, batch: BatchObject) -> None:
        owner.batches[batch.id] = batch
        async with self._saving:  # so that an older state never replaces a newer one
            data = encode(batch)
            await on_disk(_write, owner.batch_path(batch.id), data)
            owner.batches[batch.id], owner.record_bytes[batch.id] = batch, len(data)
            if removed := owner.forget_oldest(batch):
                await on_disk(_remove, [owner.batch_path(each) for each in removed])

    def _load(self, folder: Path) -> None:
        owner = self.of("" if folder.name == _NO_KEY else folder.name.removeprefix("key-"))
        files = [_read(path, FileObject) for path in (folder / "files").glob("*.json")]
        batches = [_read(path, BatchObject) for path in (folder / "batches").glob("*.json")]
        owner.files = {file.id: file for file in sorted(files, key=lambda each: each.created_at)}
        owner.batches = {batch.id: batch for batch in sorted(batches, key=lambda each: each.created_at)}
        owner.record_bytes = {name: owner.batch_path(name).stat().st_size for name in owner.batches}
        needed = {*owner.files, *(name for batch in owner.active for name in result_ids(batch))}
        for path in (folder / "files").glob("*"):
            if path.name.removesuffix(".json") in needed:
                self._count(owner, path.stat().st_size if path.suffix != ".json" else 0)
            elif _ID.match(path.name):
                path.unlink()  # an upload that was not complete when the server ended


class StorageError(APIError):
    """An APIError 503, raised if the disk is full or cannot be used."""

    def __init__(self, reason: OSError) -> None:
        message = f"the server's --batch-storage cannot be used now: {reason.strerror}; try again later"
        headers = {"Retry-After": str(_RETRY_AFTER), "Connection": "close"}
        super().__init__(503, message, code="storage_unavailable", headers=headers)


async def on_disk(work: Callable[..., Done], *args: object) -> Done:
    """Return the result of `work`, called in a thread; an OSError is logged and raised as StorageError.

    If the call is cancelled, it ends only when `work` has: nothing is written to a file that its caller has closed or
    removed by then, nor to the folder of another server.
    """
    working = asyncio.ensure_future(asyncio.to_thread(work, *args))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        while not working.done():
            with contextlib.suppress(asyncio.CancelledError):  # once is enough
                await asyncio.wait((working,))
        raise
    except OSError as error:
        log.warning("--batch-storage cannot be used: %s", error)
        raise StorageError(error) from None


async def with_retries(work: Callable[[], Awaitable[Done]]) -> Done:
    """Return the result of `work`, which is called again for GIVE_UP seconds after its first StorageError.

    So no answer of a batch is lost while the disk is full.
    """
    end: float | None = None  # not known before the first error: `work` may have waited long for its turn
    while True:
        try:
            return await work()
        except StorageError:
            if time.monotonic() >= (end := end or time.monotonic() + GIVE_UP):
                raise
            await asyncio.sleep(PAUSE)


def append(file: IO[bytes], data: bytes) -> None:
    """Append `data` to a file without a buffer. OSError if it cannot be written; then the file is as it was."""
    start, rest = file.seek(0, os.SEEK_END), memoryview(data)
    try:
        while rest:
            rest = rest[file.write(rest) :]
    except OSError:
        file.truncate(start)
        raise


def new_file_id() -> str:
    """Return the id of a new file."""
    return f"file-{uuid.uuid4().hex}"


def new_batch_id() -> str:
    """Return the id of a new batch."""
    return f"batch_{uuid.uuid4().hex}"


def result_ids(batch: BatchObject) -> tuple[str, str]:
    """Return the ids of a batch's output and error file, which are derived from the batch's own id."""
    name = uuid.UUID(batch.id.removeprefix("batch_"))
    return f"file-{uuid.uuid5(name, 'output').hex}", f"file-{uuid.uuid5(name, 'errors').hex}"


def _read(path: Path, kind: type[Kept]) -> Kept:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"--batch-storage: {path} is damaged ({error}); remove it") from None


def _create(path: Path) -> IO[bytes]:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("ab", buffering=0)


def _remove(paths: Sequence[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def _write(path: Path, data: bytes) -> None:
    """Replace a small file in one step, so that a server that is killed leaves the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".new")
    beside.write_bytes(data)
    beside.replace(path)
