"""The messages between the HTTP process and the engine process: msgspec structs over an ipc socket, never pickle."""

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
    """Ends requests whose answers are not needed any more. Ids of requests that have just ended are ignored."""

    request_ids: list[str]


class LoadAdapter(msgspec.Struct, tag="load_adapter", frozen=True):
    """Loads a LoRA adapter; an AdapterLoaded or AdapterFailed with the same ticket answers it."""

    ticket: int
    name: str
    path: str


class UnloadAdapter(msgspec.Struct, tag="unload_adapter", frozen=True):
    """Removes the adapter's name, if it is known. Requests that already use the adapter run to their end."""

    name: str


class Ping(msgspec.Struct, tag="ping", frozen=True):
    """Asks for a Pong, which the engine loop sends between two steps."""

    sequence: int


class Shutdown(msgspec.Struct, tag="shutdown", frozen=True):
    """Ends the engine now, after the HTTP process has drained; requests left end with finish_reason `abort`."""


ToEngine = AddRequest | AbortRequests | LoadAdapter | UnloadAdapter | Ping | Shutdown


class Loading(msgspec.Struct, tag="loading", frozen=True):
    """The progress of loading the model."""

    phase: str
    """One of sizing, pulling, loading, warmup."""
    ratio: float
    """The progress over all phases, 0 to 1; never falls."""
    detail: str = ""


class Planned(msgspec.Struct, tag="planned", frozen=True):
    """The memory plan as rows of text, sent before the weights are downloaded."""

    rows: list[tuple[str, str]]


class Ready(msgspec.Struct, tag="ready", frozen=True):
    """The engine accepts requests from now on."""

    info: EngineInfo


class Outputs(msgspec.Struct, tag="outputs", frozen=True):
    """The outputs of requests after a step, and the scheduler's state."""

    outputs: StepOutputs
    stats: SchedulerStats


class AdapterLoaded(msgspec.Struct, tag="adapter_loaded", frozen=True):
    """The adapter is loaded: requests may name it from now on."""

    ticket: int
    info: AdapterInfo


class AdapterFailed(msgspec.Struct, tag="adapter_failed", frozen=True):
    """The adapter could not be loaded."""

    ticket: int
    message: str
    found: bool
    """Whether there is an adapter at the path."""


class Pong(msgspec.Struct, tag="pong", frozen=True):
    """The engine loop's answer to a Ping."""

    sequence: int


class Failed(msgspec.Struct, tag="failed", frozen=True):
    """The engine's last message: it failed, and ends with this exit code."""

    exit_code: int
    message: str


FromEngine = Loading | Planned | Ready | Outputs | AdapterLoaded | AdapterFailed | Pong | Failed

encode = msgspec.msgpack.Encoder().encode
decode_to_engine = msgspec.msgpack.Decoder(ToEngine).decode
decode_from_engine = msgspec.msgpack.Decoder(FromEngine).decode
