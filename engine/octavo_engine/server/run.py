"""`octavo-engine serve`: bind the port, load the model, serve, drain. The port answers already during the load."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any

import uvicorn
import uvloop
from starlette.types import ASGIApp
from uvicorn.server import ServerState

from octavo_engine import logs
from octavo_engine.config import EngineConfig, ServerConfig
from octavo_engine.engine.client import EngineClient
from octavo_engine.engine.info import EngineInfo
from octavo_engine.engine.needed_task import needed
from octavo_engine.errors import ConfigurationError, EngineDeadError
from octavo_engine.listen import listening_socket
from octavo_engine.model.source import resolve_model
from octavo_engine.server.acceptor import Acceptor, possible_connections
from octavo_engine.server.app import create_app, create_probes
from octavo_engine.server.auth import KeyRing
from octavo_engine.server.connection import ClientConnection
from octavo_engine.server.errors import shutting_down
from octavo_engine.server.load_lines import log_load
from octavo_engine.server.middleware import MAX_HEADER_BYTES
from octavo_engine.server.openai.batches.storage import Storage
from octavo_engine.server.prepared import Setup
from octavo_engine.server.progress import show_loading
from octavo_engine.server.repeated_warnings import limit_warnings_of_connections
from octavo_engine.server.serving import Serving
from octavo_engine.server.spare_connection import spare_connections
from octavo_engine.server.tracing import Tracing
from octavo_engine.text.tokenizer import Tokenizer, load_tokenizer

if TYPE_CHECKING:
    from octavo_engine.server.start_display import StartDisplay

log = logging.getLogger("octavo.server")
connection_log = logging.getLogger("octavo.connections")

_RELOAD_INTERVAL = 5.0
_TICK = 0.05
_KEEP_ALIVE = 620
"""Seconds that an idle connection is kept: longer than clients and proxies keep theirs (90 s in Go's client, as in the
API server of Kubernetes; 600 s in Google's load balancers), so that it is they who close it. If the server closed it, a
request that the client is just sending could be lost."""
_BEAT_INTERVAL = 0.25
_CLOSING = 2.0
"""Seconds for streams that are ended with an error at shutdown to send their last event."""


def serve(engine: EngineConfig, server: ServerConfig) -> int:
    """Serve until a signal, drain, and return the exit code 0; OctavoError, with its exit code, if that fails."""
    if server.lora_modules_file is not None and not engine.enable_lora:
        raise ConfigurationError("--lora-modules-file needs --enable-lora")
    log_format = logs.for_reader(server.log_format)
    logs.set_up(log_format)
    limit_warnings_of_connections()
    names = tuple(server.served_model_name or [engine.model])
    tracing = _tracing(server.otlp_traces_endpoint, names[0])
    priorities = "priority" in (engine.scheduling_policy, engine.prefix_cache_policy)
    keys = KeyRing(server.api_key_file, priorities=priorities) if server.api_key_file is not None else None
    with (
        contextlib.closing(bind(server.host, server.port)) as listener,
        _metrics_listener(server) as metrics_listener,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        serving = Serving(server, EngineClient(engine, log_format), names, keys, priorities, tracing)
        display = _start_display(names[0]) if log_format == logs.TERMINAL else None
        try:
            return runner.run(_until_signals(Server(serving, engine, listener, metrics_listener, display)))
        finally:
            if tracing is not None:
                tracing.close()


def _start_display(name: str) -> StartDisplay:
    from rich.console import Console  # imported here, as only a start on a terminal needs it

    from octavo_engine.server.start_display import StartDisplay

    return StartDisplay(Console(stderr=True), name)


def _tracing(endpoint: str | None, model: str) -> Tracing | None:
    """Return the exporter of spans, None without an endpoint; ConfigurationError if its packages are missing."""
    if endpoint is None:
        return None
    try:
        from octavo_engine.server.otlp import OtlpTracing
    except ModuleNotFoundError as error:
        packages = "opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"
        message = f"--otlp-traces-endpoint needs Octavo's extra otel ({error.name} is missing): pip install {packages}"
        raise ConfigurationError(message) from None
    return OtlpTracing(endpoint, model)


def bind(host: str, port: int, flag: str = "--port") -> socket.socket:
    """Return a listening socket; ConfigurationError if the address cannot be used."""
    try:
        return listening_socket(host, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            message = f"port {port} on {host} is in use by another program; choose another one with {flag}"
        elif error.errno == errno.EACCES:
            message = f"port {port} needs privileges; choose one above 1023 with {flag}"
        else:
            message = f"cannot listen on --host {host} {flag} {port}: {error.strerror or error}"
        raise ConfigurationError(message) from None


@contextlib.contextmanager
def _metrics_listener(server: ServerConfig) -> Iterator[socket.socket | None]:
    if server.metrics_port is None:
        yield None
        return
    with contextlib.closing(bind(server.host, server.metrics_port, "--metrics-port")) as listener:
        yield listener


async def _until_signals(server: Server) -> int:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.on_signal)
    return await server.run()


class _Uvicorn(uvicorn.Server):
    """uvicorn's server without its signal handlers, because `Server` handles signals: it drains."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers."""
        yield


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
        self._connecting: set[asyncio.Task[None]] = set()
        self._broken = ""
        """The part of this process that ended although the server needs it, for the error message; empty if none."""
        self._closing = False
        folder, size = serving.config.batch_storage, serving.config.batch_storage_size
        self._storage = Storage(folder, size, serving.several_keys) if folder is not None else None
        application = create_app(serving, self._storage)
        self._batches = application.batches
        self._http = _Uvicorn(_http_config(application.serve))
        self._most_connections = possible_connections(serving.config.max_connections)
        self._acceptor = Acceptor(
            listener, self._most_connections, self._hand_over, self._probe_protocols, metrics_listener
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
        self._loop = asyncio.get_running_loop()
        http = self._needed(self._http.serve(sockets=[]), "the HTTP server")
        others = [
            self._needed(self._beat(), "the heartbeat of the HTTP server"),
            self._needed(log_load(self._serving.read_load), "the log of the load"),
        ]
        if self._serving.keys is not None:
            others.append(self._needed(self._reload_keys(self._serving.keys), "the reading of API keys"))
        if self._serving.listed_adapters is not None:
            others.append(self._needed(self._serving.listed_adapters.run(), "the reading of --lora-modules-file"))
        self._acceptor.start()
        self._needed(asyncio.wrap_future(self._acceptor.ended), "the thread that accepts connections")
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
            await asyncio.to_thread(self._acceptor.stop)
            await asyncio.gather(*self._connecting)  # connections that the acceptor handed over as it stopped
            self._http.should_exit = True
            await asyncio.gather(http, *others, return_exceptions=True)
            self._serving.text.close()

    def _needed(self, work: Awaitable[None], what: str) -> asyncio.Future[None]:
        """Run `work` for as long as the server serves. If it ends earlier, the server drains and ends."""
        return needed(work, what, self._end_by)

    def _end_by(self, reason: str, error: BaseException | None) -> None:
        if self._closing:
            return
        log.error("%s; the server drains and ends", reason, exc_info=error)
        self._broken = reason
        self._serving.draining = True
        self._signalled.set()

    def _hand_over(self, connection: socket.socket) -> None:
        """Pass a connection from the acceptor's thread, which calls this, to the server's loop."""
        self._loop.call_soon_threadsafe(self._take_connection, connection)

    def _take_connection(self, connection: socket.socket) -> None:
        """Serve a connection. At --max-connections, close spare connections for it, or it if there are none."""
        self._acceptor.taken()
        state = self._http.server_state
        if len(state.connections) >= self._most_connections:
            spare = spare_connections([each for each in state.connections if isinstance(each, ClientConnection)])
            if not spare:
                connection.close()
                connection_log.warning(
                    "a connection was closed: all %d (--max-connections) are in use", self._most_connections
                )
                return
            for each in spare:
                each.abort()
                state.connections.discard(each)  # now, or the next connection would close more of them
        self._begin(self._connect(connection))

    async def _connect(self, connection: socket.socket) -> None:
        state, config = self._http.server_state, self._http.config
        try:
            await self._loop.connect_accepted_socket(lambda: ClientConnection(config, state, {}), connection)
        except Exception as error:  # noqa: BLE001  (the error ends only this connection, and the log is bounded)
            connection.close()
            if not isinstance(error, OSError):
                connection_log.warning("a connection was closed by an error of the server: %r", error)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    def _probe_protocols(self, loop: asyncio.AbstractEventLoop) -> Callable[[], ClientConnection]:
        """Return a factory of the protocols that answer probes in `loop`."""
        config = _http_config(create_probes(self._serving))
        config.load()
        state = ServerState()
        state.default_headers = [(b"connection", b"close")]
        return lambda: ClientConnection(config, state, {}, _loop=loop)

    async def _beat(self) -> None:
        """Record again and again that the server's loop runs, for the probes, which another thread answers."""
        while True:
            self._serving.beat_at = time.monotonic()
            await asyncio.sleep(_BEAT_INTERVAL)

    async def _unless_signalled(self, work: Coroutine[Any, Any, None]) -> bool:
        """Run `work` until it ends or a signal cancels it; return True if it ended. Its errors are raised here."""
        working = asyncio.create_task(work)
        signalled = asyncio.create_task(self._signalled.wait())
        try:
            await asyncio.wait((working, signalled), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
                return True
            return False
        finally:
            working.cancel()
            signalled.cancel()
            await asyncio.gather(working, signalled, return_exceptions=True)

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
        return Setup(self._config.model, self._config.revision, self._serving.config.tool_call_parser)

    def _announce(self, ready: EngineInfo) -> None:
        host, port = self._listener.getsockname()[:2]
        shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
        if self._start_display is not None:
            self._start_display.ready(ready, f"http://{shown}:{port}", playground=self._serving.config.playground)
            return
        log.info(
            "%s is ready at http://%s:%d/v1 after %.1f s: %s on %s, context %d tokens, KV cache %d tokens",
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
            waits = [asyncio.create_task(running.idle()), asyncio.create_task(self._hurried.wait())]
            await asyncio.wait(waits, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
        if running:
            log.warning("%d requests did not finish within --drain-timeout and end with an error", len(running))
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
        connections = self._http.server_state.connections
        while time.monotonic() < ends and not self._hurried.is_set():
            if not any(each.unread for each in connections if isinstance(each, ClientConnection)):
                return
            await asyncio.sleep(_TICK)

    async def _stop_batches(self) -> None:
        if self._batches is not None and self._storage is not None:
            await self._batches.stop()
            self._storage.close()

    async def _reload_keys(self, keys: KeyRing) -> None:
        while True:
            await asyncio.sleep(_RELOAD_INTERVAL)
            try:
                await asyncio.to_thread(keys.reload_if_changed)
                self._serving.admission.forget_others(keys.names)
            except Exception:  # if this loop ended, revoked keys would stay valid for ever
                log.exception("reloading the API keys failed; trying again in %g s", _RELOAD_INTERVAL)


def _http_config(app: ASGIApp) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=ClientConnection,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=int(_CLOSING),
    )


def _read_tokenizer(config: EngineConfig) -> Tokenizer:
    return load_tokenizer(resolve_model(config.model, config.revision, lambda *_: None, weights=False))
