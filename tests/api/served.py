"""Runs the real server on 127.0.0.1 in a thread of its own, with the scripted engine."""

from __future__ import annotations

import asyncio
import faulthandler
import inspect
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import openai

from octavo_engine.config import EngineConfig, ServerConfig
from octavo_engine.server.admission.auth import KeyRing
from octavo_engine.server.lifecycle import Server
from octavo_engine.server.preparation.text_pool import PROGRAM, TextPool
from octavo_engine.server.run import bind
from octavo_engine.server.serving import Serving
from octavo_engine.server.telemetry.tracing import Tracing
from octavo_engine.text.tokenizer import Tokenizer
from tests.api.scripted_engine import Script, ScriptedEngine

T = TypeVar("T")
PATIENCE = 120
"""Seconds in which the server has to answer, begin or end: no test waits so long unless something is wrong."""


@dataclass(frozen=True, kw_only=True)
class ServerSetup:
    """What a test's server has besides its ServerConfig."""

    load: bool = True
    """Whether the engine is ready at once; otherwise it stays loading."""
    priorities: bool = False
    """Whether requests may have priorities."""
    program: Sequence[str] = PROGRAM
    """The program of the text workers."""
    tracing: Tracing | None = None


class Served:
    """A running server; `engine` must only be touched through `do`."""

    def __init__(self, listener: socket.socket, config: ServerConfig, tokenizer: Tokenizer, setup: ServerSetup) -> None:
        self.tokenizer = tokenizer
        self.port: int = listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.http = httpx2.Client(base_url=self.url, timeout=PATIENCE)
        self.outcome: int | BaseException | None = None
        self._listener, self._config, self._setup = listener, config, setup
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self.outcome = asyncio.run(self._main())
        except BaseException as error:  # noqa: BLE001  (kept for the test to inspect)
            self.outcome = error
        finally:
            self._started.set()

    async def _main(self) -> int:
        self.loop = asyncio.get_running_loop()
        self.engine = ScriptedEngine(load=self._setup.load)
        path = self._config.api_key_file
        keys = KeyRing(path) if path is not None else None
        names = tuple(self._config.served_model_name or ["smollm2"])
        self.serving = Serving(self._config, self.engine, names, keys, self._setup.priorities, self._setup.tracing)
        self.serving.text = TextPool(
            self.serving.several_keys, program=self._setup.program, hide=self.serving.hide_keys
        )
        self.server = Server(self.serving, EngineConfig(model="smollm2"), self._listener)
        self.loop.call_later(0.01, self._started.set)
        return await self.server.run()

    def start(self) -> None:
        """Wait until the server answers, and until the model is loaded unless it should stay loading."""
        self._thread.start()
        assert self._started.wait(PATIENCE)
        if self.outcome is not None:
            return
        if self._setup.load:
            self.wait_until(lambda: self.serving.loaded)
        self.wait_until(lambda: self.outcome is not None or self._answers())

    def _answers(self) -> bool:
        try:
            return self.http.get("/health/live").status_code in (200, 503)
        except httpx2.TransportError:
            return False  # a server that could not load ends

    def do(self, action: Callable[[], T]) -> T:
        """Run `action` in the server's thread."""

        async def run() -> T:
            return action()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(PATIENCE)

    def play(self, text: str = "", **script: Any) -> None:
        """Answer every request from now on like this."""
        tokens = script.pop("tokens") if "tokens" in script else self.tokenizer.encode(text)
        self.do(lambda: setattr(self.engine, "script", Script(tokens=tokens, **script)))

    def signal(self) -> None:
        """Act as on SIGTERM."""
        self.loop.call_soon_threadsafe(self.server.on_signal)

    def join(self) -> int | BaseException | None:
        """Wait for the server's end, and return its exit code or the exception that ended it."""
        self._thread.join(PATIENCE)
        if self._thread.is_alive():
            faulthandler.dump_traceback()
            tasks = "\n".join(map(repr, asyncio.all_tasks(self.loop)))
            raise AssertionError(f"the server did not end; its tasks:\n{tasks}")
        return self.outcome

    def stop(self) -> None:
        """End the server without a drain: a second signal ends the first one's."""
        if self.outcome is None:
            self.signal()
            self.signal()
        self.join()
        self.http.close()

    def wait_until(self, condition: Callable[[], object]) -> None:
        """`wait_until`; the error of a condition that never holds also says how the server has ended, if it has."""
        wait_until(condition, lambda: f"the server's outcome: {self.outcome!r}")

    def openai(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(
            base_url=f"{self.url}/v1", **{"api_key": "none", "max_retries": 0, "timeout": PATIENCE, **options}
        )

    def async_openai(self, **options: Any) -> openai.AsyncOpenAI:
        settings = {"api_key": "none", "max_retries": 0, "timeout": PATIENCE, **options}
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", **settings)


def wait_until(condition: Callable[[], object], state: Callable[[], str] = lambda: "") -> None:
    """Wait until `condition` holds, for at most `PATIENCE` seconds.

    Raises AssertionError with the condition's source and `state()`, what was there instead, if it never does.
    """
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"after {PATIENCE} s still not: {_source(condition)}; {state()}")
        time.sleep(0.01)


def _source(condition: Callable[[], object]) -> str:
    try:
        return " ".join(inspect.getsource(condition).split())
    except (OSError, TypeError):  # such as a method of a built-in class
        return repr(condition)


@contextmanager
def serve(
    tokenizer: Tokenizer,
    *,
    load: bool = True,
    priorities: bool = False,
    program: Sequence[str] = PROGRAM,
    tracing: Tracing | None = None,
    port: int = 0,
    **config: Any,
) -> Iterator[Served]:
    """Start a server with these settings of ServerConfig, and this program as its text workers.

    `port` 0 is any free one.
    """
    listener = bind("127.0.0.1", port)
    setup = ServerSetup(load=load, priorities=priorities, program=program, tracing=tracing)
    served = Served(listener, ServerConfig(host="127.0.0.1", **config), tokenizer, setup)
    served.start()
    try:
        yield served
    finally:
        served.stop()
        listener.close()


def write_keys(path: Path, *names: str) -> Path:
    """Write a key file; the key of `name` is `sk-name`."""
    lines = "".join(f"- {{name: {name}, key: sk-{name}}}\n" for name in names)
    path.write_text(f"keys:\n{lines}")
    return path
