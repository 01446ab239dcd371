"""The engine process: receives requests, runs the engine loop, sends outputs. Only `EngineClient` starts it.

The configuration comes as the first line of standard input, which then stays open: when it closes, the parent has ended
and this process ends too.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING

import msgspec
import zmq

from octavo_engine.config import EngineConfig
from octavo_engine.engine.info import AdapterInfo
from octavo_engine.engine.messages import (
    AbortRequests,
    AdapterFailed,
    AdapterLoaded,
    AddRequests,
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
    decode_to_engine,
    encode,
)
from octavo_engine.errors import AdapterNotFoundError, EngineDeadError, ModelLoadError, OctavoError
from octavo_engine.process_setup import logs
from octavo_engine.process_setup.freed_memory import keep_returning_freed_memory, use_one_heap
from octavo_engine.process_setup.imports import lasting_imports

if TYPE_CHECKING:
    from octavo_engine.engine.loop import EngineLoop

_IDLE_POLL_MS = 1000
_READING_POLL_MS = 10
"""Milliseconds between two checks for messages while an adapter is being read."""
_LOADING_INTERVAL = 0.1
_REPORT_INTERVAL = 0.5
"""Seconds after which the scheduler's state is sent even without outputs, as during the steps of a long prompt."""

log = logging.getLogger("octavo.engine")


class Connection:
    """The socket that connects the engine process with the HTTP process."""

    def __init__(self, endpoint: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.set_hwm(0)
        self._socket.connect(endpoint)

    def send(self, message: FromEngine) -> None:
        """Queue a message; never blocks."""
        self._socket.send(encode(message))

    def receive(self, wait_ms: int) -> list[ToEngine]:
        """Return all messages that have arrived, after waiting for the first one at most `wait_ms`."""
        messages: list[ToEngine] = []
        if not self._socket.poll(wait_ms):
            return messages
        while True:
            try:
                frame = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return messages
            try:
                messages.append(decode_to_engine(frame))
            except msgspec.DecodeError as error:  # our client sends none such, so no request is affected
                log.warning("a message of the HTTP process cannot be decoded and is ignored: %s", error)

    def close(self) -> None:
        """Send the queued messages, for at most a second, and close the socket."""
        self._socket.close(linger=1000)
        self._context.term()


def serve_loop(loop: EngineLoop, connection: Connection) -> None:
    """Receive messages and run steps until a Shutdown message."""
    checked, reported = True, 0.0
    while True:
        reading = loop.adapters is not None and loop.adapters.store.is_reading
        wait = 0 if loop.has_work else _READING_POLL_MS if reading else _IDLE_POLL_MS
        for message in connection.receive(wait):
            if isinstance(message, Shutdown):
                connection.send(Outputs(loop.abort_all(), loop.report()))
                return
            handle(message, loop, connection)
        if loop.adapters is not None:
            for ticket, outcome in loop.adapters.store.loaded():
                connection.send(_outcome_message(ticket, outcome))
        if loop.has_work:
            outputs = loop.step()
            if outputs.request_ids or outputs.events or time.monotonic() - reported > _REPORT_INTERVAL:
                connection.send(Outputs(outputs, loop.report()))
                reported = time.monotonic()
            checked = False
            continue
        loop.check_executor()
        if not checked:
            loop.check_integrity()
            gc.collect()
            checked = True


def _outcome_message(ticket: int, outcome: AdapterInfo | ModelLoadError) -> AdapterLoaded | AdapterFailed:
    if isinstance(outcome, ModelLoadError):
        return AdapterFailed(ticket, str(outcome), found=not isinstance(outcome, AdapterNotFoundError))
    return AdapterLoaded(ticket, outcome)


def handle(message: ToEngine, loop: EngineLoop, connection: Connection) -> None:
    """Carry out one message. A Ping is answered here, between two steps, so a Pong proves that the loop runs."""
    match message:
        case AddRequests():
            for request in message.with_prompts():
                loop.add(request)
        case AbortRequests():
            loop.abort(message.request_ids)
        case LoadAdapter() if loop.adapters is not None:
            loop.adapters.store.begin_load(message.ticket, message.name, message.path)
        case UnloadAdapter() if loop.adapters is not None:
            loop.adapters.store.unload(message.name)
        case Ping():
            connection.send(Pong(message.sequence))


def _run(config: EngineConfig, connection: Connection, log_format: str) -> None:
    with lasting_imports():
        from octavo_engine.engine.startup.start_engine import start_engine

    last_sent = 0.0
    last_phase = ""

    def progress(phase: str, ratio: float, detail: str) -> None:
        nonlocal last_sent, last_phase
        now = time.monotonic()
        if phase != last_phase or now - last_sent > _LOADING_INTERVAL or ratio >= 1.0:
            connection.send(Loading(phase, ratio, detail))
            last_sent, last_phase = now, phase

    loop = start_engine(config, progress, log_format, lambda rows: connection.send(Planned(rows)))
    _collect_garbage_when_idle()
    connection.send(Ready(loop.info))
    if loop.guided.provider is not None:
        loop.guided.provider.prepare()
    try:
        serve_loop(loop, connection)
    finally:
        loop.close()


def _collect_garbage_when_idle() -> None:
    """Exempt all loaded objects from garbage collection, and make collections of the oldest generation rare.

    `serve_loop` collects when the engine is idle. Without this, a collection between two steps walks every token of
    every request: 28 ms with 1,024 requests.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 1000)


def _die_with_parent() -> None:
    try:
        sys.stdin.buffer.read()  # ends when the parent does
    finally:
        os._exit(EngineDeadError.exit_code)


def main() -> int:
    """Entry point: `… ENDPOINT LOG_FORMAT`, with the configuration on standard input."""
    logs.set_up_engine(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the HTTP process handles the terminal's Ctrl-C
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # and a pod's SIGTERM: it drains, then sends Shutdown
    use_one_heap()  # before the first thread
    keep_returning_freed_memory()
    config = msgspec.json.decode(sys.stdin.buffer.readline(), type=EngineConfig)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    connection = Connection(sys.argv[1])
    failed: Failed | None = None
    try:
        _run(config, connection, sys.argv[2])
    except OctavoError as error:
        failed = Failed(error.exit_code, str(error))
    except Exception as error:
        log.exception("the engine died")
        failed = Failed(EngineDeadError.exit_code, f"the engine died: {type(error).__name__}: {error}")
    if failed is not None:
        connection.send(failed)
    connection.close()
    return failed.exit_code if failed is not None else 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # the thread that waits for the parent must not hold the process back
