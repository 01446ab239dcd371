"""`octavo-engine serve`: bind the port, load the model, serve, drain. The port answers already during the load."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import signal
import socket
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import uvloop

from octavo_engine.config import EngineConfig, ServerConfig
from octavo_engine.engine.client import EngineClient
from octavo_engine.errors import ConfigurationError
from octavo_engine.model.source import check_model
from octavo_engine.process_setup import logs
from octavo_engine.process_setup.freed_memory import keep_little_freed_memory
from octavo_engine.process_setup.listen import listening_socket
from octavo_engine.server.admission.auth import KeyRing
from octavo_engine.server.console.repeated_warnings import limit_warnings_of_clients
from octavo_engine.server.lifecycle import Server
from octavo_engine.server.serving import Serving
from octavo_engine.server.telemetry.tracing import Tracing

if TYPE_CHECKING:
    from octavo_engine.server.console.start_display import StartDisplay

_SWITCH_SECONDS = 0.0005
"""Seconds after which a busy thread gives the interpreter's lock to one that waits for it. Python's 5 ms are waited
after every system call of the thread that answers probes, eight times for each probe, while the event loop is busy."""


def serve(engine: EngineConfig, server: ServerConfig) -> int:
    """Serve until a signal, drain, and return the exit code 0; OctavoError, with its exit code, if that fails."""
    if server.lora_modules_file is not None and not engine.enable_lora:
        raise ConfigurationError("--lora-modules-file needs --enable-lora")
    check_model(engine.model)  # the engine does so too, but only after seconds of imports
    keep_little_freed_memory()
    sys.setswitchinterval(_SWITCH_SECONDS)
    log_format = logs.for_reader(server.log_format)
    logs.set_up(log_format)
    limit_warnings_of_clients()
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

    from octavo_engine.server.console.start_display import StartDisplay

    return StartDisplay(Console(stderr=True), name)


def _tracing(endpoint: str | None, model: str) -> Tracing | None:
    """Return the exporter of spans, None without an endpoint; ConfigurationError if its packages are missing."""
    if endpoint is None:
        return None
    try:
        from octavo_engine.server.telemetry.otlp import OtlpTracing
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
