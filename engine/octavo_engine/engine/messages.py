"""The messages between HTTP process and engine process: msgspec structs over an ipc socket, never pickle."""

from __future__ import annotations

import msgspec

from octavo_engine.core.request import Request
from octavo_engine.core.step import StepOutputs
from octavo_engine.engine.info import AdapterInfo, EngineInfo
from octavo_engine.engine.scheduler_stats import SchedulerStats


class AddRequest(msgspec.Struct, tag="add", frozen=True):
    """Asks for an answer to a tokenized, checked request."""

    request: Request


class AbortRequests(msgspec.Struct, tag="abort", frozen=True):
    """Ends requests whose answers are not needed any more. An id may be unknown, as its request has just ended."""

    request_ids: list[str]


class LoadAdapter(msgspec.Struct, tag="load_adapter", frozen=True):
    """Asks for a LoRA adapter; an AdapterLoaded or AdapterFailed with the same ticket follows."""

    ticket: int
    name: str
    path: str


class UnloadAdapter(msgspec.Struct, tag="unload_adapter", frozen=True):
    """Forgets the adapter of this name, if there is one. Requests that use it go on to their end."""

    name: str


class Ping(msgspec.Struct, tag="ping", frozen=True):
    """Asks the loop itself, between two steps, to answer with a Pong."""

    sequence: int


class Shutdown(msgspec.Struct, tag="shutdown", frozen=True):
    """End now; what runs is answered with finish_reason `abort`. The HTTP process has drained before."""


ToEngine = AddRequest | AbortRequests | LoadAdapter | UnloadAdapter | Ping | Shutdown


class Loading(msgspec.Struct, tag="loading", frozen=True):
    """The progress of loading."""

    phase: str
    """pulling, loading, sizing or warmup."""
    ratio: float
    """0 to 1 over all phases; never falls."""
    detail: str = ""


class Planned(msgspec.Struct, tag="planned", frozen=True):
    """The memory plan as rows for people, sent before anything large is fetched."""

    rows: list[tuple[str, str]]


class Ready(msgspec.Struct, tag="ready", frozen=True):
    """The engine can take requests."""

    info: EngineInfo


class Outputs(msgspec.Struct, tag="outputs", frozen=True):
    """The outputs of requests after a step, and the scheduler's state."""

    outputs: StepOutputs
    stats: SchedulerStats


class AdapterLoaded(msgspec.Struct, tag="adapter_loaded", frozen=True):
    """Requests may name the adapter from now on."""

    ticket: int
    info: AdapterInfo


class AdapterFailed(msgspec.Struct, tag="adapter_failed", frozen=True):
    """An adapter cannot be used."""

    ticket: int
    message: str
    found: bool
    """Whether there is one at its path."""


class Pong(msgspec.Struct, tag="pong", frozen=True):
    """The loop's answer to a Ping."""

    sequence: int


class Failed(msgspec.Struct, tag="failed", frozen=True):
    """The engine's last message: it ends with this exit code."""

    exit_code: int
    message: str


FromEngine = Loading | Planned | Ready | Outputs | AdapterLoaded | AdapterFailed | Pong | Failed

encode = msgspec.msgpack.Encoder().encode
decode_to_engine = msgspec.msgpack.Decoder(ToEngine).decode
decode_from_engine = msgspec.msgpack.Decoder(FromEngine).decode
