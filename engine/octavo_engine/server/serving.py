"""The shared state of the HTTP process: engine, model names, tokenizer, running requests, admission, metrics."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

from starlette.types import Scope

from octavo_engine.config import ServerConfig
from octavo_engine.core.request import Request
from octavo_engine.engine.client import EngineState
from octavo_engine.engine.info import AdapterInfo, EngineInfo
from octavo_engine.engine.messages import Failed, Outputs
from octavo_engine.engine.output_stream import OutputStream
from octavo_engine.engine.watchdog import Watchdog
from octavo_engine.server.adapter_file import AdapterFile
from octavo_engine.server.admission.auth import KeyRing, key_of
from octavo_engine.server.admission.bytes_in_use import BytesInUse
from octavo_engine.server.admission.limits import Admission, Arrival, QueueLimits
from octavo_engine.server.admission.paths import GENERATING
from octavo_engine.server.console.load_lines import LoadReading, counts_now
from octavo_engine.server.errors import APIError, engine_dead, shutting_down, unavailable
from octavo_engine.server.preparation.loaded_model import LoadedModel
from octavo_engine.server.preparation.text_pool import TextPool
from octavo_engine.server.telemetry.metrics import Metrics
from octavo_engine.server.telemetry.tracing import Tracing
from octavo_engine.text.tokenizer import Tokenizer

_MAX_UPLOADS = 64 << 20
"""Bytes of request bodies that have arrived and are not prepared yet."""
_MAX_ACCEPTED = 64 << 20
"""Bytes of prepared requests whose answers have not ended. As Python objects, token ids take about ten times more."""
_SHOWN = 20
"""Most models that an error message lists."""
_MAX_UNREAD = 96 << 20
"""Bytes of complete answers that clients have not read yet."""


class Engine(Protocol):
    """The part of `EngineClient` that the server needs."""

    state: EngineState
    watchdog: Watchdog
    on_step: Callable[[Outputs], None] | None

    async def start(self) -> None: ...
    async def wait_ready(self) -> EngineInfo: ...
    def generate(self, requests: Sequence[Request], outputs: OutputStream) -> AbstractAsyncContextManager[None]: ...
    async def abort(self, request_ids: Sequence[str]) -> None: ...
    async def load_adapter(self, name: str, path: str) -> None: ...
    async def unload_adapter(self, name: str) -> None: ...
    async def closed(self) -> Failed | None: ...
    async def stop(self) -> None: ...


class Cancellable(Protocol):
    """A running request that can be ended with an error."""

    def fail(self, error: APIError) -> None: ...


class Running:
    """The requests that were accepted and have not ended."""

    def __init__(self) -> None:
        self._requests: set[Cancellable] = set()
        self._preparing = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        return len(self._requests) + self._preparing

    @contextlib.contextmanager
    def preparing(self) -> Iterator[None]:
        """Count a request as running while it is prepared; at the end it has been added or has failed."""
        self._preparing += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._preparing -= 1
            self._settle()

    def add(self, request: Cancellable) -> None:
        """Count a request as running: it is being answered."""
        self._requests.add(request)
        self._idle.clear()

    def remove(self, request: Cancellable) -> None:
        """Forget a request that has ended."""
        self._requests.discard(request)
        self._settle()

    def _settle(self) -> None:
        if len(self) == 0:
            self._idle.set()

    async def idle(self) -> None:
        """Wait until no request is being answered."""
        await self._idle.wait()

    def fail_all(self, error: APIError) -> None:
        """End every running request with `error`."""
        for request in list(self._requests):
            request.fail(error)


@dataclass(slots=True)
class Serving:
    """The state that all endpoints of one server share."""

    config: ServerConfig
    engine: Engine
    names: tuple[str, ...]
    """The model's names in the API: its own name, then aliases."""
    keys: KeyRing | None = None
    priorities: bool = False
    """True if a request's priority has an effect, which depends on the engine's policies."""
    tracing: Tracing | None = None
    """The exporter of requests' spans; None without --otlp-traces-endpoint."""
    metrics: Metrics = field(init=False)
    admission: Admission = field(init=False)
    text: TextPool = field(init=False)
    uploads: BytesInUse = field(init=False)
    unread: BytesInUse = field(init=False)
    accepted: BytesInUse = field(init=False)
    listed_adapters: AdapterFile | None = None
    """The adapters of --lora-modules-file."""
    running: Running = field(default_factory=Running)
    tokenizer: Tokenizer | None = None
    draining: bool = False
    beat_at: float | None = None
    """When the server's loop last ran (monotonic seconds); None before it serves."""
    started_at: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        config = self.config
        self.admission = Admission(
            QueueLimits(
                config.max_queued_requests,
                config.max_queued_tokens,
                config.max_kv_commitment,
                config.max_key_share,
                config.max_queue_seconds,
            ),
            lambda: self.engine.state.stats,
            lambda: self.engine.state.ready,
            several_keys=self.several_keys,
            priorities=self.priorities,
        )
        if (path := config.lora_modules_file) is not None:
            self.listed_adapters = AdapterFile(path, self.engine, self.names)
        self.text = TextPool(self.several_keys, hide=self.hide_keys)
        self.uploads = BytesInUse(_MAX_UPLOADS, "uploads", "request bodies", self.several_keys)
        unread = "answers that are not complete or not read"
        self.unread = BytesInUse(_MAX_UNREAD, "unread_answers", unread, self.several_keys)
        self.accepted = BytesInUse(_MAX_ACCEPTED, "accepted_bytes", "accepted requests", self.several_keys)
        self.metrics = Metrics(
            self.names[0],
            lambda: self.engine.state,
            lambda: self.admission.queued,
            vllm_names=self.config.vllm_metrics,
        )
        self.engine.on_step = self.metrics.on_step

    def read_load(self) -> LoadReading:
        """Return the server's present load, for the log."""
        stats, metrics = self.engine.state.stats, self.metrics
        return LoadReading(
            stats, self.admission.queued, counts_now(stats, metrics.generated_tokens.total, metrics.num_rejected)
        )

    @property
    def loop_silence(self) -> float:
        """Seconds since the server's loop last ran; another thread reads this to see whether the loop is stuck."""
        return 0.0 if self.beat_at is None else time.monotonic() - self.beat_at

    def several_keys(self) -> bool:
        """Return True if several keys share the server."""
        return self.keys is not None and len(self.keys) > 1

    def hide_keys(self, text: str) -> str:
        """Return a client's text without the server's API keys, for logs and for what other clients can read."""
        return text if self.keys is None else self.keys.hide(text)

    @property
    def loaded(self) -> bool:
        """True if engine and tokenizer are loaded."""
        return self.engine.state.phase == "ready" and self.tokenizer is not None

    def model(self) -> LoadedModel:
        """Return the model for a new request; APIError 503 while it loads, while draining or if the engine is dead."""
        state = self.engine.state
        if self.draining:
            self.metrics.reject("draining")
            raise shutting_down()
        if state.phase == "dead":
            raise engine_dead(state.failed.message if state.failed else "it was stopped")
        if state.ready is None or self.tokenizer is None:
            self.metrics.reject("loading")
            progress = state.progress
            raise unavailable(f"the model is loading ({progress.phase} {progress.ratio:.0%})", "model_loading", 5)
        return LoadedModel(state.ready, self.tokenizer)

    def arrive(self, scope: Scope) -> Arrival | None:
        """Count a request whose headers have arrived; RefusedError if a limit is reached.

        Return None while loading or draining: the endpoint rejects such a request, once its body has been read.
        """
        if not self.loaded or self.draining:
            return None
        generates = scope["method"] == "POST" and scope["path"] in GENERATING
        return self.admission.arrive(key_of(scope), generates=generates)

    def check_model(self, name: str | None) -> AdapterInfo | None:
        """Return the adapter that a request names as its model; None for the base model, and for no name.

        APIError 404 if the name is not served here; 503 if it is an adapter that is about to be loaded.
        """
        if name is None or name in self.names:
            return None
        if (adapter := self.engine.state.adapters.get(name)) is None:
            if self.listed_adapters is not None and self.listed_adapters.is_on_its_way(name):
                self.metrics.reject("loading")
                raise unavailable(f"the adapter {name!r} is being loaded", "adapter_loading", 5)
            every = [*self.names, *self.engine.state.adapters]
            served = f"the served model{'s are' if len(every) > 1 else ' is'} {', '.join(every[:_SHOWN])}"
            raise APIError(
                404,
                f"the model {name[:200]!r} is not served here; {served}",
                code="model_not_found",
                param="model",
            )
        return adapter
