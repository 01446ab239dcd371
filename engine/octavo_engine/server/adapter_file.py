"""--lora-modules-file: loading and unloading the LoRA adapters that a file lists, as the file changes.

The file is written by a program that fetches adapters (`octavo-engine adapters`). It is read at the server's start, so
that a restart loads the same adapters, and whenever it changes. An adapter that cannot be loaded does not affect the
others; it is tried again later. /health/adapters shows the state of each adapter, with the reason for a failure.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Protocol

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from octavo_engine.config.adapters import MAX_ADAPTERS, check_adapter_name
from octavo_engine.engine.client import EngineState
from octavo_engine.errors import ModelLoadError
from octavo_engine.retry_pause import retry_pause

log = logging.getLogger("octavo.server")

_INTERVAL = 1.0
"""Seconds between two checks of the file."""
_FIRST_PAUSE = 5.0
"""Seconds after which an adapter is tried again that has failed once; the pause doubles at each further failure."""
_PATIENCE = 60.0
"""Seconds for which a server with a loaded model stays unready while the adapters of its start are loading."""
_MAX_BYTES = 4 << 20

_UNDER_WAY = ("Fetching", "Loading")
"""States of adapters that may soon be loaded."""

AdapterName = Annotated[str, Field(min_length=1, max_length=256), AfterValidator(check_adapter_name)]


class AdapterEntry(BaseModel):
    """The entry of one adapter in the file."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    name: AdapterName
    """The model name by which requests select it."""
    version: Annotated[str, Field(max_length=128)] = ""
    """A text that differs for different weights: when it changes, the loaded weights are replaced."""
    path: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """The adapter's directory; None while the adapter is being fetched, and if it cannot be fetched."""
    failed: bool = False
    """True if the adapter cannot be fetched."""
    message: Annotated[str, Field(max_length=4096)] = ""
    """The reason why there is no path."""


class AdapterList(BaseModel):
    """The content of the file."""

    model_config = ConfigDict(extra="forbid", strict=True)

    adapters: Annotated[list[AdapterEntry], Field(max_length=MAX_ADAPTERS)]


class AdapterEngine(Protocol):
    """The part of `EngineClient` that loading adapters needs."""

    state: EngineState

    async def load_adapter(self, name: str, path: str) -> None: ...
    async def unload_adapter(self, name: str) -> None: ...


@dataclass(slots=True)
class _Adapter:
    """One adapter of the file: its present entry, and how far loading it is."""

    entry: AdapterEntry
    loaded: str | None = None
    """The version that is loaded and answers requests."""
    failures: int = 0
    warning: str = ""
    """The engine's warning about the loaded version."""
    problem: str = ""
    again_at: float = 0.0

    @property
    def state(self) -> str:
        """The state for /health/adapters: Loaded, Failed, Loading or Fetching."""
        if self.loaded == self.entry.version:
            return "Loaded"
        if self.entry.failed or self.problem:
            return "Failed"
        return "Loading" if self.entry.path is not None else "Fetching"

    def report(self) -> dict[str, Any]:
        """Return the adapter's entry in the response of /health/adapters."""
        message = self.warning if self.state == "Loaded" else self.problem or self.entry.message
        if self.loaded is not None and self.state != "Loaded":
            message = f"{message}; until then requests use the weights that were loaded before".removeprefix("; ")
        return {"name": self.entry.name, "version": self.entry.version, "state": self.state, "message": message}


@dataclass(slots=True)
class AdapterFile:
    """Loads and unloads the engine's adapters as the file lists them. `reserved` are the base model's names."""

    path: Path
    engine: AdapterEngine
    reserved: Sequence[str]
    clock: Callable[[], float] = time.monotonic
    _adapters: dict[str, _Adapter] = field(default_factory=dict)
    _seen: tuple[int, ...] | None = None
    _ready_at: float | None = None
    _settled: bool = False

    @property
    def is_awaited(self) -> bool:
        """True while the server should stay unready because the adapters of its start are still loading.

        A client cannot choose its replica, so a replica should have the other replicas' adapters before it answers. The
        wait has a limit, and failed adapters are not waited for.
        """
        late = self._ready_at is not None and self.clock() - self._ready_at > _PATIENCE
        return not (self._settled or late)

    def is_on_its_way(self, name: str) -> bool:
        """Return True if the adapter of this name is being fetched or loaded."""
        return name in self._adapters and self._adapters[name].state in _UNDER_WAY

    async def run(self) -> None:
        """Apply the file again and again, until the task is cancelled."""
        while True:
            try:
                await self.update()
            except Exception:  # if this loop ended, later changes of the file would have no effect
                log.exception("applying %s failed; trying again in %g s", self.path, _INTERVAL)
            await asyncio.sleep(_INTERVAL)

    async def update(self) -> None:
        """Read the file if it has changed, and load and unload adapters accordingly."""
        await self._read_if_changed()
        if self.engine.state.phase != "ready":
            return
        if self._ready_at is None:
            self._ready_at = self.clock()
        adapters = list(self._adapters.values())
        await asyncio.gather(*(self._load_if_due(adapter) for adapter in adapters))
        if self._seen is not None and not any(adapter.state in _UNDER_WAY for adapter in adapters):
            self._settled = True

    def report(self) -> list[dict[str, Any]]:
        """Return the state of each adapter of the file. May be called from any thread."""
        return [adapter.report() for adapter in list(self._adapters.values())]

    async def _read_if_changed(self) -> None:
        try:
            stat = await asyncio.to_thread(self.path.stat)
        except OSError:
            return  # not written yet: its writer may start later than this server
        seen = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        if seen == self._seen:
            return
        self._seen = seen
        try:
            entries = await asyncio.to_thread(_read, self.path)
        except (OSError, ValueError) as error:
            first = error.errors(include_input=False)[0]["msg"] if isinstance(error, ValidationError) else error
            log.error("the adapters were not reloaded: --lora-modules-file %s cannot be used: %s", self.path, first)
            return
        await self._apply(entries)

    async def _apply(self, entries: Sequence[AdapterEntry]) -> None:
        wanted = {entry.name: entry for entry in entries}
        for name in self._adapters.keys() - wanted.keys():
            if self._adapters.pop(name).loaded is not None:
                await self.engine.unload_adapter(name)
                log.info("adapter %s was unloaded, since %s does not list it any more", name, self.path)
        for name, entry in wanted.items():
            known = self._adapters.get(name)
            if known is None:
                self._adapters[name] = _Adapter(entry)
            elif known.entry != entry:
                known.entry, known.failures, known.problem, known.again_at = entry, 0, "", 0.0

    async def _load_if_due(self, adapter: _Adapter) -> None:
        """Load an adapter whose present version is not loaded, unless it has failed a short time ago."""
        entry = adapter.entry
        if adapter.loaded == entry.version or entry.path is None or self.clock() < adapter.again_at:
            return
        try:
            if entry.name in self.reserved:
                raise ModelLoadError(f"{entry.name!r} is the base model's own name: give the adapter another one")
            if adapter.loaded is None and entry.name in self.engine.state.adapters:
                raise ModelLoadError(
                    f"--lora-modules has an adapter {entry.name!r}, too: give one of them another name"
                )
            await self.engine.load_adapter(entry.name, entry.path)
        except ModelLoadError as error:
            self._note_failure(adapter, str(error))
            return
        adapter.loaded, adapter.failures, adapter.problem = entry.version, 0, ""
        adapter.warning = self.engine.state.adapters[entry.name].warning
        log.info("adapter %s was loaded from %s", entry.name, entry.path)

    def _note_failure(self, adapter: _Adapter, problem: str) -> None:
        pause = retry_pause(_FIRST_PAUSE, adapter.failures)
        adapter.failures += 1
        adapter.again_at = self.clock() + pause
        if problem != adapter.problem:
            log.error("adapter %s cannot be loaded: %s", adapter.entry.name, problem)
        adapter.problem = problem


def _read(path: Path) -> list[AdapterEntry]:
    """Return the entries of the file; OSError, ValueError or ValidationError if it cannot be used."""
    with path.open("rb") as file:
        data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise ValueError(f"it has more than {_MAX_BYTES} bytes")
    entries = AdapterList.model_validate_json(data).adapters
    if len({entry.name for entry in entries}) < len(entries):
        raise ValueError("a name appears twice")
    return entries
