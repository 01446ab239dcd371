"""The adapter store: reads the adapters that requests may name, in threads of its own, and keeps them in CPU memory.

A name stands for the digest of an adapter's weights, and requests carry the digest: a running request keeps the weights
it began with, even if the name is reloaded or unloaded. An adapter that no request uses may leave CPU memory
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

from octavo_engine.config.adapters import ADAPTERS_READ_AT_ONCE
from octavo_engine.core.request import Request
from octavo_engine.engine.info import AdapterInfo
from octavo_engine.errors import ModelLoadError, NotAdmissibleError
from octavo_engine.model.lora.adapter import Adapter
from octavo_engine.model.lora.adapter_files import AdapterLimits, read_adapter
from octavo_engine.model.lora.base_model import warn_of_base
from octavo_engine.model.source import resolve_adapter

log = logging.getLogger(__name__)

_NICENESS = 10
"""How much lower the priority of reading threads is than that of the threads that compute steps: a step waits for the
slowest of its threads."""


@dataclass(slots=True)
class _Known:
    """An adapter that names or requests still use."""

    path: str
    adapter: Adapter | None
    """None while it is not in CPU memory."""
    names: set[str] = field(default_factory=set)
    """The names that stand for the adapter, or did before their newest load. Without names and requests it is
    removed."""
    requests: set[str] = field(default_factory=set)
    """Ids of the requests that use the adapter."""
    used: int = 0  # the store's clock at the last use
    reading: Future[Adapter] | None = None


@dataclass(slots=True)
class _Load:
    """A load under way."""

    name: str
    path: str
    reading: Future[Adapter]


class AdapterStore:
    """The adapters by name and by digest. The loop's thread owns it; only reading is done in other threads."""

    def __init__(self, limits: AdapterLimits, max_adapters: int, served: str = "") -> None:
        """Start without adapters of the `served` model, a Hugging Face id, a path or nothing.

        At most `max_adapters` stay in CPU memory, unless requests use more; the least recently used ones are dropped
        first.
        """
        self._limits, self._max_adapters, self._served = limits, max_adapters, served
        self._names: dict[str, str] = {}
        self._replaced: dict[str, str] = {}
        """For some names, the digest that they stood for before their newest load. It stays known, as the HTTP process
        sends requests with it until it has heard of that load."""
        self._known: dict[str, _Known] = {}
        self._digest_of_request: dict[str, str] = {}
        self._loads: dict[int, _Load] = {}
        self._newest: dict[str, int] = {}
        """For each name, the ticket of its newest load while that is under way: an older load may end after it."""
        self._clock = 0
        self._loading = _threads(ADAPTERS_READ_AT_ONCE)
        self._reading = _threads(1)
        """One thread that reads adapters again for waiting requests, so that these do not wait for slow loads."""
        self.on_unused: Callable[[str], None] = lambda _: None
        """Called with the digest of an adapter that no request uses any more."""

    def _read(self, path: str) -> Adapter:
        return read_adapter(resolve_adapter(path), self._limits)

    def load(self, name: str, path: str) -> AdapterInfo:
        """Read an adapter now; raises ModelLoadError if it cannot be used."""
        return self._take(name, path, self._read(path))

    def begin_load(self, ticket: int, name: str, path: str) -> None:
        """Read an adapter in another thread; `loaded` returns the result, by its ticket."""
        self._newest[name] = ticket
        self._loads[ticket] = _Load(name, path, self._loading.submit(self._read, path))

    def loaded(self) -> list[tuple[int, AdapterInfo | ModelLoadError]]:
        """Return the loads that have ended since the last call: ticket, and the adapter or the error."""
        ended = [(ticket, load) for ticket, load in self._loads.items() if load.reading.done()]
        found: list[tuple[int, AdapterInfo | ModelLoadError]] = []
        for ticket, load in ended:
            del self._loads[ticket]
            if newest := self._newest.get(load.name) == ticket:
                del self._newest[load.name]
            try:
                adapter = load.reading.result()
                if not newest:
                    raise ModelLoadError(f"{load.path}: {load.name} was loaded again, or unloaded, while this was read")
                found.append((ticket, self._take(load.name, load.path, adapter)))
            except Exception as error:  # noqa: BLE001  (a bad file ends this load alone, with any error)
                found.append((ticket, _reason(load.path, error)))
        return found

    def _take(self, name: str, path: str, adapter: Adapter) -> AdapterInfo:
        if self._names.get(name) != adapter.digest:
            self._forget_name(name, self._replaced)
            if (before := self._names.pop(name, None)) is not None:
                self._replaced[name] = before
        known = self._known.setdefault(adapter.digest, _Known(path, adapter))
        known.adapter, known.path = known.adapter or adapter, path
        known.names.add(name)
        self._names[name] = adapter.digest
        self._touch(known)
        self._shrink()
        if warning := warn_of_base(adapter.base, self._served):
            log.warning("adapter %s: %s", name, warning)
        return AdapterInfo(
            name=name,
            path=path,
            digest=adapter.digest,
            rank=adapter.rank,
            created=int(time.time()),
            warning=warning,
        )

    def unload(self, name: str) -> None:
        """Remove the adapter's name, also from a load under way; requests that use the adapter run to their end."""
        self._newest.pop(name, None)
        for digests in (self._names, self._replaced):
            self._forget_name(name, digests)

    def _forget_name(self, name: str, digests: dict[str, str]) -> None:
        if (digest := digests.pop(name, None)) is not None:
            self._known[digest].names.discard(name)
            self._forget_unused(digest)

    def digest_of(self, name: str) -> str:
        """Return the digest of a loaded adapter; KeyError if there is none of this name."""
        return self._names[name]

    def begin(self, request: Request) -> None:
        """Note that a request uses its adapter; NotAdmissibleError if the adapter was unloaded before."""
        if not request.adapter:
            return
        known = self._known.get(request.adapter)
        if known is None:
            raise NotAdmissibleError("the adapter was unloaded before this request began; name another model")
        known.requests.add(request.request_id)
        self._digest_of_request[request.request_id] = request.adapter
        self._touch(known)

    def end(self, request_id: str) -> None:
        """Note that a request has ended and no longer uses its adapter."""
        if (digest := self._digest_of_request.pop(request_id, None)) is not None:
            self._known[digest].requests.discard(request_id)
            self._forget_unused(digest)

    def is_used(self, digest: str) -> bool:
        """Return True if any request, waiting or running, has this adapter."""
        return digest in self._known and bool(self._known[digest].requests)

    def get(self, digest: str) -> Adapter | None:
        """Return an adapter that a request uses; if it has left CPU memory, begin to read it and return None."""
        known = self._known[digest]
        if known.adapter is None and known.reading is None:
            known.reading = self._reading.submit(self._read, known.path)
        return known.adapter

    def take_reread(self) -> list[tuple[str, str]]:
        """Keep adapters that were read again; return (id, reason) of requests whose adapter cannot be read any more."""
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
            except Exception as error:  # noqa: BLE001  (a bad file ends its own requests alone, with any error)
                failed += [(request_id, str(_reason(known.path, error))) for request_id in known.requests]
        return failed

    @property
    def is_reading(self) -> bool:
        """True while any adapter is being read."""
        return bool(self._loads) or any(known.reading is not None for known in self._known.values())

    def names_in_use(self, running: Set[str]) -> tuple[list[str], list[str]]:
        """Return the adapter names that `running` requests (ids) use, and those that other requests wait for."""
        names = sorted(self._names.items())
        requests = [(name, self._known[digest].requests) for name, digest in names]
        return [name for name, ids in requests if ids & running], [name for name, ids in requests if ids - running]

    def close(self) -> None:
        """Stop reading adapters."""
        for threads in (self._loading, self._reading):
            threads.shutdown(wait=False, cancel_futures=True)

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
        """Drop unused adapters from CPU memory, least recently used first, until at most `max_adapters` are left."""
        here = [known for known in self._known.values() if known.adapter is not None]
        idle = sorted((known for known in here if not known.requests), key=lambda known: known.used)
        for known in idle[: max(0, len(here) - self._max_adapters)]:
            known.adapter = None


def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix="adapters", initializer=_lower_priority)


def _lower_priority() -> None:
    """Lower the priority of the calling thread alone: on Linux each thread has a priority of its own."""
    with contextlib.suppress(OSError):  # a sandbox may forbid it; an error here would end all reading
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.getpriority(os.PRIO_PROCESS, 0) + _NICENESS)


def _reason(path: str, error: Exception) -> ModelLoadError:
    if isinstance(error, ModelLoadError):
        return error
    log.error("the adapter %r cannot be read", path, exc_info=error)
    return ModelLoadError(f"{path}: cannot be read: {type(error).__name__}")
