"""The adapters that requests may name: read and checked in threads of their own, kept in CPU memory, most recent first.

A name stands for the digest of an adapter's weights, and requests carry the digest: one that runs keeps the weights it
began with, even if the name is reloaded or unloaded. An adapter that nothing uses may leave CPU memory
(--max-cpu-loras) and is read again when a request needs it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Set
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from octavo_engine.core.request import Request
from octavo_engine.engine.info import AdapterInfo
from octavo_engine.errors import ModelLoadError, NotAdmissibleError
from octavo_engine.model.lora.adapter import Adapter, AdapterLimits, read_adapter
from octavo_engine.model.source import resolve_adapter

log = logging.getLogger(__name__)

_THREADS = 2
"""Adapters that are fetched and read at once."""
_NICENESS = 10
"""The threads that read give way to those that compute steps: each waits for the slowest of them."""


@dataclass(slots=True)
class _Known:
    """An adapter by its digest."""

    path: str
    adapter: Adapter | None
    """None while it is not in CPU memory."""
    names: set[str] = field(default_factory=set)
    """The names that stand for it. Without names and requests it is forgotten."""
    requests: set[str] = field(default_factory=set)
    """Ids of those that use it."""
    used: int = 0
    reading: Future[Adapter] | None = None


@dataclass(slots=True)
class _Load:
    """A load that was asked for."""

    name: str
    path: str
    reading: Future[Adapter]


class AdapterStore:
    """Owned by the loop's thread; only reading is done in others."""

    def __init__(self, limits: AdapterLimits, max_adapters: int) -> None:
        """Start without adapters.

        At most `max_adapters` stay in CPU memory, apart from those that requests use; the least recently used leave
        first.
        """
        self._limits, self._max_adapters = limits, max_adapters
        self._names: dict[str, str] = {}
        self._known: dict[str, _Known] = {}
        self._digest_of_request: dict[str, str] = {}
        self._loads: dict[int, _Load] = {}
        self._newest: dict[str, int] = {}
        """The load of each name that was asked for last, while it is under way: an older one may end after it."""
        self._clock = 0
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="adapters", initializer=_give_way)
        self.on_unused: Callable[[str], None] = lambda _: None
        """Called with a digest that no request uses any more."""

    def _read(self, path: str) -> Adapter:
        return read_adapter(resolve_adapter(path), self._limits)

    def load(self, name: str, path: str) -> AdapterInfo:
        """Read an adapter now; ModelLoadError says what is wrong with it."""
        return self._take(name, path, self._read(path))

    def begin_load(self, ticket: int, name: str, path: str) -> None:
        """Read an adapter in another thread; `loaded` has the outcome, by its ticket."""
        self._newest[name] = ticket
        self._loads[ticket] = _Load(name, path, self._threads.submit(self._read, path))

    def loaded(self) -> list[tuple[int, AdapterInfo | ModelLoadError]]:
        """The loads that have ended since the last call, with what is wrong where one failed."""
        ended = [(ticket, load) for ticket, load in self._loads.items() if load.reading.done()]
        found: list[tuple[int, AdapterInfo | ModelLoadError]] = []
        for ticket, load in ended:
            del self._loads[ticket]
            if newest := self._newest.get(load.name) == ticket:
                del self._newest[load.name]
            try:
                adapter = load.reading.result()
                if not newest:
                    raise ModelLoadError(f"{load.path}: {load.name} was loaded anew, or unloaded, while this was read")
                found.append((ticket, self._take(load.name, load.path, adapter)))
            except Exception as error:  # noqa: BLE001  (whatever a file does ends this load alone)
                found.append((ticket, _reason(load.path, error)))
        return found

    def _take(self, name: str, path: str, adapter: Adapter) -> AdapterInfo:
        self.unload(name)
        known = self._known.setdefault(adapter.digest, _Known(path, adapter))
        known.adapter, known.path = known.adapter or adapter, path
        known.names.add(name)
        self._names[name] = adapter.digest
        self._touch(known)
        self._shrink()
        created = int(time.time())
        return AdapterInfo(name=name, path=path, digest=adapter.digest, rank=adapter.rank, created=created)

    def unload(self, name: str) -> None:
        """The name stands for nothing any more, nor will it; requests that run go on to their end."""
        self._newest.pop(name, None)
        if (digest := self._names.pop(name, None)) is not None:
            self._known[digest].names.discard(name)
            self._forget_unused(digest)

    def digest_of(self, name: str) -> str:
        """The digest of a loaded adapter; KeyError if there is none of this name."""
        return self._names[name]

    def begin(self, request: Request) -> None:
        """A request uses its adapter from now on; NotAdmissibleError if that was unloaded before it came."""
        if not request.adapter:
            return
        known = self._known.get(request.adapter)
        if known is None:
            raise NotAdmissibleError("the adapter was unloaded before this request began; name another model")
        known.requests.add(request.request_id)
        self._digest_of_request[request.request_id] = request.adapter
        self._touch(known)

    def end(self, request_id: str) -> None:
        """A request has ended."""
        if (digest := self._digest_of_request.pop(request_id, None)) is not None:
            self._known[digest].requests.discard(request_id)
            self._forget_unused(digest)

    def is_used(self, digest: str) -> bool:
        """Return True if any request, waiting or running, has this adapter."""
        return digest in self._known and bool(self._known[digest].requests)

    def get(self, digest: str) -> Adapter | None:
        """An adapter that a request uses; None while it has to be read again, which begins."""
        known = self._known[digest]
        if known.adapter is None and known.reading is None:
            known.reading = self._threads.submit(self._read, known.path)
        return known.adapter

    def failed(self) -> list[tuple[str, str]]:
        """Take in what was read again; the requests whose adapter could not be, and why."""
        failed: list[tuple[str, str]] = []
        for digest, known in self._known.items():
            if (reading := known.reading) is None or not reading.done():
                continue
            known.reading = None
            try:
                adapter = reading.result()
                if adapter.digest != digest:
                    raise ModelLoadError(f"{known.path}: its files have changed since it was loaded; load it again")
                known.adapter = adapter
            except Exception as error:  # noqa: BLE001  (whatever a file does ends this load alone)
                failed += [(request_id, str(_reason(known.path, error))) for request_id in known.requests]
        return failed

    @property
    def is_reading(self) -> bool:
        """True while any adapter is being read."""
        return bool(self._loads) or any(known.reading is not None for known in self._known.values())

    def names_of_requests(self, running: Set[str]) -> tuple[list[str], list[str]]:
        """The names of adapters that requests run with, by those requests' ids, and of those that others wait for."""
        names = sorted(self._names.items())
        requests = [(name, self._known[digest].requests) for name, digest in names]
        return [name for name, ids in requests if ids & running], [name for name, ids in requests if ids - running]

    def close(self) -> None:
        """Let nothing be read any more."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _touch(self, known: _Known) -> None:
        self._clock += 1
        known.used = self._clock

    def _forget_unused(self, digest: str) -> None:
        known = self._known[digest]
        if not known.requests:
            self.on_unused(digest)
            if not known.names:
                del self._known[digest]
            else:
                self._shrink()

    def _shrink(self) -> None:
        """Drop what is too much from CPU memory."""
        here = [known for known in self._known.values() if known.adapter is not None]
        idle = sorted((known for known in here if not known.requests), key=lambda known: known.used)
        for known in idle[: max(0, len(here) - self._max_adapters)]:
            known.adapter = None


def _give_way() -> None:
    """Lower the priority of this thread, which Linux has for each thread by itself."""
    with contextlib.suppress(OSError):  # a sandbox may forbid it; an error here would end all reading
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.getpriority(os.PRIO_PROCESS, 0) + _NICENESS)


def _reason(path: str, error: Exception) -> ModelLoadError:
    if isinstance(error, ModelLoadError):
        return error
    log.error("the adapter %s cannot be read", path, exc_info=error)
    return ModelLoadError(f"{path}: cannot be read: {type(error).__name__}")
