"""The HTTP process's engine client: starts the engine process, sends requests, delivers outputs, notices its end.

It imports no torch, directly or indirectly, so that the HTTP process answers /health and /metrics within a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import zmq
import zmq.asyncio

from octavo_engine.config import EngineConfig
from octavo_engine.core.request import Request
from octavo_engine.engine.info import AdapterInfo, EngineInfo
from octavo_engine.engine.messages import (
    AbortRequests,
    AdapterFailed,
    AdapterLoaded,
    Failed,
    FromEngine,
    LoadAdapter,
    Loading,
    Outputs,
    Ping,
    Planned,
    Pong,
    Ready,
    Shutdown,
    ToEngine,
    UnloadAdapter,
    decode_from_engine,
    encode,
    to_add,
)
from octavo_engine.engine.output_stream import OutputStream
from octavo_engine.engine.scheduler_stats import SchedulerStats
from octavo_engine.engine.supervised_task import supervise
from octavo_engine.engine.watchdog import Watchdog
from octavo_engine.errors import (
    BY_EXIT_CODE,
    AdapterNotFoundError,
    ConfigurationError,
    EngineDeadError,
    ModelLoadError,
    OctavoError,
)
from octavo_engine.process_setup.signals import how_it_ended

log = logging.getLogger("octavo.server")

_PING_INTERVAL = 1.0
_STOP_GRACE = 5.0
_PROCESS = "octavo_engine.engine.process"
_LONGEST_SOCKET_PATH = 107
"""The longest path that fits into sun_path (unix(7))."""


@dataclass(slots=True)
class EngineState:
    """The engine's state as the client knows it; only the client writes it."""

    phase: str = "starting"
    """One of starting, loading, ready, dead."""
    progress: Loading = field(default_factory=lambda: Loading("starting", 0.0, "importing PyTorch"))
    plan: list[tuple[str, str]] | None = None
    """The memory plan as rows of text, once it is known."""
    ready: EngineInfo | None = None
    failed: Failed | None = None
    stats: SchedulerStats = field(default_factory=SchedulerStats)
    adapters: dict[str, AdapterInfo] = field(default_factory=dict)
    """The loaded adapters by name."""


def error_of(failed: Failed) -> OctavoError:
    """Return the exception for the failure that ended the engine."""
    return BY_EXIT_CODE.get(failed.exit_code, EngineDeadError)(failed.message)


class EngineClient:
    """Controls one engine process from asyncio."""

    def __init__(self, config: EngineConfig, log_format: str = "text") -> None:
        self.config = config
        self._log_format = log_format
        self.state = EngineState()
        self.on_step: Callable[[Outputs], None] | None = None
        self.watchdog = Watchdog(config.watchdog_timeout)
        self._streams: dict[str, OutputStream] = {}
        self._settled = asyncio.Event()
        self._ended = asyncio.Event()
        self._tasks: list[asyncio.Future[None]] = []
        self._stopping = False
        self._loads: dict[int, asyncio.Future[AdapterInfo]] = {}
        self._tickets = itertools.count()

    async def start(self) -> None:
        """Start the engine process, and return while it loads the model."""
        try:
            self._folder = tempfile.TemporaryDirectory(prefix="octavo-")  # mode 0700: no other user can connect
        except OSError as error:
            reason = f"no folder for temporary files can be written: {error.strerror or error}"
            raise ConfigurationError(f"{reason}; set TMPDIR to one with room for a socket") from None
        path = Path(self._folder.name) / "engine"
        if len(os.fsencode(path)) > _LONGEST_SOCKET_PATH:
            self._folder.cleanup()
            raise ConfigurationError(
                f"the folder for temporary files, {path.parent.parent}, has too long a name for a "
                f"socket; set TMPDIR to one of at most 80 characters"
            )
        endpoint = f"ipc://{path}"
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.set_hwm(0)
        self._socket.bind(endpoint)
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", _PROCESS, endpoint, self._log_format, stdin=asyncio.subprocess.PIPE,
            start_new_session=True,  # a terminal's Ctrl-C is for the HTTP process, which drains
        )  # fmt: skip
        if self._process.stdin is None:
            raise RuntimeError("the engine process has no standard input")
        self._process.stdin.write(msgspec.json.encode(self.config) + b"\n")
        await self._process.stdin.drain()
        self._tasks += [
            supervise(self._read(), "the task that reads the engine's messages", self._end_by),
            supervise(self._watch_process(), "the task that waits for the engine's end", self._end_by),
        ]

    async def wait_ready(self) -> EngineInfo:
        """Return the engine's description once it is loaded; raise the error that prevented it."""
        await self._settled.wait()
        if self.state.ready is None or self.state.failed is not None:
            raise error_of(self.state.failed or Failed(EngineDeadError.exit_code, "the engine was stopped"))
        return self.state.ready

    @contextlib.asynccontextmanager
    async def generate(self, requests: Sequence[Request], outputs: OutputStream) -> AsyncIterator[None]:
        """Send the requests, whose outputs go to `outputs`; its reader gets an EngineDeadError if the engine dies.

        The forks of a request follow it. Leaving the context aborts the requests that have not ended.
        """
        if self.state.phase != "ready":
            outputs.fail(EngineDeadError(self.state.failed.message if self.state.failed else "the engine is not ready"))
            yield
            return
        self._streams.update((request.request_id, outputs) for request in requests)
        try:
            for message in to_add(requests):
                await self._send(message)
            yield
        finally:
            for request in requests:
                self._streams.pop(request.request_id, None)
            await self.abort(tuple(outputs.unfinished))

    async def abort(self, request_ids: Sequence[str]) -> None:
        """End requests whose answers are not needed any more: they get no further outputs."""
        for request_id in request_ids:
            if (stream := self._streams.pop(request_id, None)) is not None:
                stream.unfinished.discard(request_id)
        if request_ids and self.state.phase == "ready":
            await self._send(AbortRequests(list(request_ids)))

    async def load_adapter(self, name: str, path: str) -> None:
        """Load a LoRA adapter, in place of any adapter of the same name.

        Raises AdapterNotFoundError if there is no adapter at `path`, ModelLoadError if it cannot be used, and
        EngineDeadError if the engine has ended or ends before it is loaded.
        """
        if self.state.failed is not None:
            raise EngineDeadError(self.state.failed.message)
        ticket, loading = next(self._tickets), asyncio.get_running_loop().create_future()
        self._loads[ticket] = loading
        try:
            await self._send(LoadAdapter(ticket, name, path))
            await loading
        finally:
            del self._loads[ticket]

    async def unload_adapter(self, name: str) -> None:
        """Remove the name of a LoRA adapter; requests that already use the adapter run to their end."""
        self.state.adapters.pop(name, None)
        await self._send(UnloadAdapter(name))

    async def closed(self) -> Failed | None:
        """Wait until the engine process has ended; return the failure, or None if it was asked to end."""
        await self._ended.wait()
        return self.state.failed

    async def stop(self) -> None:
        """End the engine process, the client's tasks and the socket."""
        self._stopping = True
        if not self._ended.is_set():
            with contextlib.suppress(zmq.ZMQError):
                await self._send(Shutdown())
            try:
                # A process that is still loading does not read messages, and has no requests to end.
                grace = _STOP_GRACE if self.state.phase == "ready" else 0.1
                await asyncio.wait_for(self._ended.wait(), grace)
            except TimeoutError:
                self._kill()
                await self._ended.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, self._process.wait(), return_exceptions=True)
        self._socket.close(linger=0)
        self._context.term()
        self._folder.cleanup()

    async def _send(self, message: ToEngine) -> None:
        # Sending to an engine that just ended would wait forever; `_watch_process` fails the open streams.
        with contextlib.suppress(zmq.Again):
            await self._socket.send(encode(message), flags=zmq.NOBLOCK)

    async def _read(self) -> None:
        while True:
            frame = await self._socket.recv()
            try:
                self._take(decode_from_engine(frame))
            except Exception as error:  # noqa: BLE001  (the task would end unnoticed, and streams would hang)
                self._fail(Failed(EngineDeadError.exit_code, f"a message of the engine could not be taken: {error}"))
                self._kill()

    def _take(self, message: FromEngine) -> None:
        match message:
            case Loading():
                self.state.phase, self.state.progress = "loading", message
            case Planned():
                self.state.plan = message.rows
            case Ready():
                self.state.ready, self.state.phase = message.info, "ready"
                self.state.adapters = {adapter.name: adapter for adapter in message.info.adapters}
                self._settled.set()
                self._tasks.append(
                    supervise(self._ping(), "the task that looks for a stall of the engine", self._end_by)
                )
            case Outputs():
                self._deliver(message)
            case AdapterLoaded() | AdapterFailed():
                self._take_adapter(message)
            case Pong():
                self.watchdog.answer(message.sequence)
            case Failed():
                self._fail(message)

    def _deliver(self, message: Outputs) -> None:
        self.state.stats = message.stats
        for output in message.outputs.each():
            if (stream := self._streams.get(output.request_id)) is not None:
                stream.put(output)
        if self.on_step is not None:
            self.on_step(message)

    def _take_adapter(self, message: AdapterLoaded | AdapterFailed) -> None:
        loading = self._loads.get(message.ticket)
        if isinstance(message, AdapterLoaded):
            self.state.adapters[message.info.name] = message.info  # even if the HTTP client that asked for it has gone
            if loading is not None and not loading.done():
                loading.set_result(message.info)
        elif loading is not None and not loading.done():
            kind = ModelLoadError if message.found else AdapterNotFoundError
            loading.set_exception(kind(message.message))

    async def _ping(self) -> None:
        interval = min(_PING_INTERVAL, self.config.watchdog_timeout / 2)
        while True:
            if (sequence := self.watchdog.next_ping()) is not None:
                await self._send(Ping(sequence))
            await self.watchdog.sleep(interval)
            if self.watchdog.stalled and self.state.phase == "ready":
                self._fail(Failed(EngineDeadError.exit_code, self._stall_message()))
                self._kill()

    def _stall_message(self) -> str:
        return (
            f"the engine stalled: no step ended for {self.watchdog.silence:.0f} s (--watchdog-timeout "
            f"{self.config.watchdog_timeout:g}); {len(self._streams)} requests were in progress. If steps can take so "
            f"long here, raise --watchdog-timeout or lower --max-num-batched-tokens"
        )

    async def _watch_process(self) -> None:
        code = await self._process.wait()
        await asyncio.sleep(0.05)  # a last message may still be on its way
        if not self._stopping and self.state.failed is None:
            self._fail(Failed(EngineDeadError.exit_code, f"the engine process {how_it_ended(code)}"))
        self.state.phase = "dead"
        self._settled.set()
        self._ended.set()

    def _fail(self, failed: Failed) -> None:
        """Remember the first failure and fail every stream."""
        if self.state.failed is None:
            self.state.failed = failed
        self.state.phase = "dead"
        for stream in set(self._streams.values()):
            stream.fail(EngineDeadError(self.state.failed.message))
        for loading in self._loads.values():
            if not loading.done():
                loading.set_exception(EngineDeadError(self.state.failed.message))
        self._settled.set()

    def _end_by(self, reason: str, error: BaseException | None) -> None:
        """End the engine, because a task that delivers its outputs has ended: the streams would wait forever."""
        if self._stopping or self._ended.is_set():
            return
        log.error("%s; the engine is stopped", reason, exc_info=error)
        self._fail(Failed(EngineDeadError.exit_code, reason))
        self._kill()
        self._ended.set()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGKILL)
