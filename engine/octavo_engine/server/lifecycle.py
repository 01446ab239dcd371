"""One run of the HTTP process: it listens at once, loads the model, serves, and drains after a signal."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Coroutine
from typing import TYPE_CHECKING, Any

from starlette.concurrency import run_in_threadpool

from octavo_engine.config import EngineConfig
from octavo_engine.engine.info import EngineInfo
from octavo_engine.engine.supervised_task import supervise
from octavo_engine.errors import EngineDeadError
from octavo_engine.model.source import resolve_model
from octavo_engine.process_setup import logs
from octavo_engine.process_setup.freed_memory import RETURN_INTERVAL, return_freed_memory
from octavo_engine.server.admission.auth import KeyRing
from octavo_engine.server.app import create_app, create_probes
from octavo_engine.server.connections.acceptor import HeadReaders, Listeners, possible_connections
from octavo_engine.server.connections.http_connections import HttpConnections
from octavo_engine.server.connections.quick_probes import QuickProbes
from octavo_engine.server.console.load_lines import log_load
from octavo_engine.server.console.progress import show_loading
from octavo_engine.server.endpoints.health import answers
from octavo_engine.server.errors import shutting_down
from octavo_engine.server.openai.batches.storage import MOST_OPEN, Storage
from octavo_engine.server.preparation.prepared import Setup
from octavo_engine.server.run_until import run_until
from octavo_engine.server.serving import Serving
from octavo_engine.text.tokenizer import Tokenizer, load_tokenizer

if TYPE_CHECKING:
    from octavo_engine.server.console.start_display import StartDisplay

log = logging.getLogger("octavo.server")

_RELOAD_INTERVAL = 5.0
_TICK = 0.05
_BEAT_INTERVAL = 0.25
_CLOSING = 2.0
"""Seconds for streams that are ended with an error at shutdown to send their last event."""


class Server:
    """One run of the HTTP process, from the bound socket to the exit code."""

    def __init__(
        self,
        serving: Serving,
        config: EngineConfig,
        listener: socket.socket,
        metrics_listener: socket.socket | None = None,
        display: StartDisplay | None = None,
    ) -> None:
        """Prepare the run. `display` shows the start on a terminal; without it, the start is logged."""
        self._start_display = display
        self._serving = serving
        self._config = config
        self._listener = listener
        self._signalled = asyncio.Event()
        self._hurried = asyncio.Event()
        self._broken = ""
        """The part of this process that ended although the server needs it, for the error message; empty if none."""
        self._closing = False
        folder, size = serving.config.batch_storage, serving.config.batch_storage_size
        self._storage = Storage(folder, size, serving.several_keys) if folder is not None else None
        application = create_app(serving, self._storage)
        self._batches = application.batches
        owner_of = serving.keys.name_in if serving.keys is not None else lambda _: ""
        self._connections = HttpConnections(
            application.serve,
            create_probes(serving),
            Listeners(listener, metrics_listener),
            HeadReaders(owner_of, QuickProbes(answers(serving)).answer),
            possible_connections(serving.config.max_connections, MOST_OPEN if folder is not None else 0),
            _CLOSING,
        )

    async def run(self) -> int:
        """Serve until a signal, then return 0; EngineDeadError if the engine or a part of this process ends before."""
        async with self._engine_running(), self._listening():
            if await self._unless_signalled(self._load()):
                await self._unless_signalled(self._engine_end())
            await self._drain()
        return 0

    def on_signal(self) -> None:
        """Begin to drain; at the second signal, end the running requests at once."""
        self._serving.draining = True
        if self._signalled.is_set():
            self._hurried.set()
        self._signalled.set()

    @contextlib.asynccontextmanager
    async def _engine_running(self) -> AsyncIterator[None]:
        await self._serving.engine.start()
        try:
            yield
        finally:
            await self._serving.engine.stop()

    @contextlib.asynccontextmanager
    async def _listening(self) -> AsyncIterator[None]:
        http = self._supervise(self._connections.serve(), "the HTTP server")
        others = [
            self._supervise(self._beat(), "the heartbeat of the HTTP server"),
            self._supervise(log_load(self._serving.read_load), "the log of the load"),
            self._supervise(_return_memory(), "the return of freed memory and of idle threads"),
        ]
        if self._serving.keys is not None:
            others.append(self._supervise(self._reload_keys(self._serving.keys), "the reading of API keys"))
        if self._serving.listed_adapters is not None:
            others.append(self._supervise(self._serving.listed_adapters.run(), "the reading of --lora-modules-file"))
        self._supervise(self._connections.start(), "the thread that accepts connections")
        if self._batches is not None:
            self._batches.start()
        try:
            yield
        finally:
            await self._stop_batches()
            self._serving.draining = True
            self._closing = True
            for other in others:
                other.cancel()
            await self._connections.stop()
            await asyncio.gather(http, *others, return_exceptions=True)
            self._serving.text.close()

    def _supervise(self, work: Awaitable[None], what: str) -> asyncio.Future[None]:
        """Run `work` for as long as the server serves. If it ends earlier, the server drains and ends."""
        return supervise(work, what, self._end_by)

    def _end_by(self, reason: str, error: BaseException | None) -> None:
        if self._closing:
            return
        log.error("%s; the server drains and ends", reason, exc_info=error)
        self._broken = reason
        self._serving.draining = True
        self._signalled.set()

    async def _beat(self) -> None:
        """Record again and again that the server's loop runs, for the probes, which another thread answers."""
        while True:
            self._serving.beat_at = time.monotonic()
            await asyncio.sleep(_BEAT_INTERVAL)

    async def _unless_signalled(self, work: Coroutine[Any, Any, None]) -> bool:
        """Run `work` until it ends or a signal cancels it; return True if it ended. Its errors are raised here."""
        working = await run_until(work, self._signalled.wait())
        if working.cancelled():
            return False
        working.result()
        return True

    async def _load(self) -> None:
        engine = self._serving.engine
        showing = asyncio.create_task(show_loading(lambda: engine.state, self._serving.names[0], self._start_display))
        loading = asyncio.gather(engine.wait_ready(), self._load_tokenizer())
        try:
            ready, self._serving.tokenizer = await loading
        finally:
            loading.cancel()
            showing.cancel()
            await asyncio.gather(showing, return_exceptions=True)
        gc.collect()
        gc.freeze()  # objects made by loading live on: skipping them saves each later collection 50 ms
        self._announce(ready)

    async def _load_tokenizer(self) -> Tokenizer:
        """Load the tokenizer while the engine loads the weights, once the engine has fetched the files."""
        state = self._serving.engine.state
        while state.progress.phase in ("starting", "pulling") and state.phase != "ready":
            await asyncio.sleep(_TICK)
        found, started = await asyncio.gather(
            asyncio.to_thread(_read_tokenizer, self._config),
            self._serving.text.start(self._setup_of_workers()),
            return_exceptions=True,
        )
        if isinstance(found, BaseException):  # it says what is wrong, while a text worker that fails to load just ends
            raise found
        if started is not None:
            raise started
        return found

    def _setup_of_workers(self) -> Setup:
        server = self._serving.config
        log_format = logs.for_reader(server.log_format)
        return Setup(self._config.model, self._config.revision, server.tool_call_parser, log_format)

    def _announce(self, ready: EngineInfo) -> None:
        host, port = self._listener.getsockname()[:2]
        shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
        if self._start_display is not None:
            self._start_display.ready(ready, f"http://{shown}:{port}", playground=self._serving.config.playground)
            return
        log.info(
            "%s is ready at http://%s:%d/v1, loaded in %.1f s: %s on %s, context %d tokens, KV cache %d tokens",
            self._serving.names[0],
            shown,
            port,
            ready.load_seconds,
            ready.dtype,
            ready.device,
            ready.max_model_len,
            ready.num_kv_blocks * ready.block_size,
        )

    async def _engine_end(self) -> None:
        failed = await self._serving.engine.closed()
        raise EngineDeadError(failed.message if failed else "the engine process ended")

    async def _drain(self) -> None:
        """Let running requests end, and clients read their answers, within --drain-timeout; then fail the others.

        Batches stop at once: the next server does their remaining lines.
        """
        await self._stop_batches()
        running, limit = self._serving.running, self._serving.config.drain_timeout
        ends = time.monotonic() + limit
        if running:
            count = f"{len(running)} request{'s' * (len(running) != 1)}"
            log.info("draining: %s may take %g s more; a second signal ends them at once", count, limit)
            await run_until(running.idle(), self._hurried.wait(), timeout=limit)
        if running:
            why = "at a second signal" if self._hurried.is_set() else "as they did not finish within --drain-timeout"
            log.warning("%d requests end with an error, %s", len(running), why)
            running.fail_all(shutting_down())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(running.idle(), _CLOSING)
        elif self._serving.engine.state.failed is None and not self._broken:
            await self._until_read(ends)
        if (failed := self._serving.engine.state.failed) is not None:
            raise EngineDeadError(failed.message)
        if self._broken:
            raise EngineDeadError(self._broken)
        log.info("the server is stopped")

    async def _until_read(self, ends: float) -> None:
        """Wait, at most until `ends` (monotonic seconds), for clients that read their answers slowly."""
        while time.monotonic() < ends and not self._hurried.is_set() and self._connections.unread:
            await asyncio.sleep(_TICK)

    async def _stop_batches(self) -> None:
        if self._batches is not None and self._storage is not None:
            await self._batches.stop()
            await self._storage.stop()
            self._storage.close()

    async def _reload_keys(self, keys: KeyRing) -> None:
        while True:
            await asyncio.sleep(_RELOAD_INTERVAL)
            try:
                await asyncio.to_thread(keys.reload_if_changed)
                self._serving.admission.forget_others(keys.names)
            except Exception:  # if this loop ended, revoked keys would stay valid for ever
                log.exception("reloading the API keys failed; trying again in %g s", _RELOAD_INTERVAL)


async def _return_memory() -> None:
    """Return freed memory again and again: after a burst of connections malloc kept 37 MiB of it.

    This uses Starlette's threads, which read files for clients. They are up to 40, and those that have had nothing to
    do for ten seconds end only when one of them gets work.
    """
    while True:
        await asyncio.sleep(RETURN_INTERVAL)
        await run_in_threadpool(return_freed_memory)


def _read_tokenizer(config: EngineConfig) -> Tokenizer:
    return load_tokenizer(resolve_model(config.model, config.revision, lambda *_: None, weights=False))
