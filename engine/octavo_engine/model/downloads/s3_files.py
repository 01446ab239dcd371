"""Downloads objects of an S3 bucket into files: goes on where an earlier try ended, and compares what arrived with the
ETag."""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo_engine.errors import ModelLoadError
from octavo_engine.model.downloads import incomplete_files
from octavo_engine.model.downloads.download import Counter, without_queries
from octavo_engine.sizes import format_size

if TYPE_CHECKING:
    from obstore.store import S3Store

log = logging.getLogger(__name__)

_MD5 = re.compile(r'"?([0-9a-f]{32})"?')
"""An ETag of this form is the content's MD5, unless the bucket encrypts with keys of its own; other ETags never are."""
_PART_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class Entry:
    """One object of a listing, by the last part of its key."""

    key: str
    size: int
    etag: str
    folder: str = ""
    """Its folder under the prefix; empty: at the top."""

    @property
    def name(self) -> str:
        """The path of its file below the model's folder."""
        own = self.key.rpartition("/")[2]
        return f"{self.folder}/{own}" if self.folder else own


def is_complete(folder: Path, entry: Entry) -> bool:
    """Return True if the entry's file in `folder` is complete: only then it has its name."""
    with suppress(OSError):
        return (folder / entry.name).stat().st_size == entry.size
    return False


@dataclass
class ObjectFiles:
    """Fetches objects into files. `etags_are_digests` is None until the first object shows whether these are."""

    store: S3Store
    folder: Path
    counter: Counter
    etags_are_digests: bool | None = None

    def fetch(self, entry: Entry) -> None:
        """Fetch one object, going on where an earlier try ended; its file has its name only when it is complete."""
        file = self.folder / entry.name
        try:
            file.parent.mkdir(exist_ok=True)
            partial = incomplete_files.take(file, entry.size)
            while not is_complete(self.folder, entry):
                if self._fill(entry, partial):
                    with suppress(FileNotFoundError):  # another program has taken it over, there being no lock
                        if self._is_good(entry, partial):
                            partial.replace(file)
            incomplete_files.clear(file)
        except OSError as error:
            if not is_complete(self.folder, entry):  # else another program has finished it and cleared ours away
                raise ModelLoadError(
                    f"{entry.key}: cannot be stored: {error.strerror or error}; XDG_CACHE_HOME moves the cache"
                ) from error
        self.counter.at(entry.name, entry.size)

    def _fill(self, entry: Entry, partial: Path) -> bool:
        """Append what `partial` lacks; return False if another program has fetched the file meanwhile."""
        partial.touch()
        with partial.open("r+b") as file:
            done = file.seek(0, os.SEEK_END)
            self.counter.at(entry.name, done)
            for piece in self.rest(entry, done):
                done += file.write(piece)
                self.counter.at(entry.name, done)
            file.flush()
            os.fsync(file.fileno())
            size = os.fstat(file.fileno()).st_size
        if size != entry.size and not is_complete(self.folder, entry):
            partial.unlink(missing_ok=True)
            raise ModelLoadError(
                f"{entry.key}: became {size} bytes in the cache instead of {entry.size}: another program writes into "
                f"{self.folder} too; try again"
            )
        return size == entry.size

    def _is_good(self, entry: Entry, partial: Path) -> bool:
        """Compare what lies on the disk with the ETag; if they differ, fetch it again as `_fill` does."""
        expected = _MD5.fullmatch(entry.etag) if self.etags_are_digests is not False else None
        if expected is None:
            return True
        first = _digest(partial)
        if first == expected[1]:
            self.etags_are_digests = True
            return True
        partial.unlink()
        if not self._fill(entry, partial):
            return False
        self._judge(entry, first, _digest(partial), expected[1])
        return True

    def _judge(self, entry: Entry, first: str, second: str, expected: str) -> None:
        """Learn from an object that was fetched twice whether this bucket's ETags are MD5 digests.

        They are not if it arrives twice alike, but unlike its ETag. Raises ModelLoadError if it arrived damaged twice.
        """
        if second == expected:
            self.etags_are_digests = True
        elif first == second and self.etags_are_digests is None:
            log.info("the ETags of this bucket are not MD5 digests, for example because it encrypts with its own keys")
            self.etags_are_digests = False
        else:
            raise ModelLoadError(f"{entry.key}: arrived damaged twice (MD5 {second} instead of {expected}); try again")

    def rest(self, entry: Entry, start: int) -> Iterator[Any]:
        """Yield the bytes from `start` on, in requests of one part each.

        Ends early if another program has downloaded the file meanwhile. The library repeats a request that breaks off.
        """
        from obstore import exceptions

        try:
            while start < entry.size and not is_complete(self.folder, entry):
                end = min(start + _PART_BYTES, entry.size)
                options: Any = {"range": (start, end), **({"if_match": entry.etag} if entry.etag else {})}
                for piece in self.store.get(entry.key, options=options).stream(min_chunk_size=1 << 20):
                    start += len(piece)
                    yield piece
        except (exceptions.PreconditionError, FileNotFoundError):
            raise ModelLoadError(f"{entry.key}: was changed or removed while it was being fetched; try again") from None
        except exceptions.BaseError as error:
            raise ModelLoadError(
                f"{entry.key}: the download broke off at {format_size(start)}: {first_line(error)}"
            ) from error


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def first_line(error: Exception) -> str:
    """Return the beginning of an error's message, without the queries of its URLs, in which a key may be."""
    return without_queries((str(error).strip() or type(error).__name__).splitlines()[0])[:300]
