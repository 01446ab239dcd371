"""The messages between the HTTP process and the engine process: msgspec structs over an ipc socket, never pickle."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import msgspec

from octavo_engine.core.request import Request
from octavo_engine.core.step import StepOutputs
from octavo_engine.engine.info import AdapterInfo, EngineInfo
from octavo_engine.engine.scheduler_stats import SchedulerStats


class AddRequests(msgspec.Struct, tag="add", frozen=True):
    """Asks for answers to a tokenized, checked prompt: a request, and its forks without the prompt, which is the same.

    With 128 copies of a long prompt the engine would need hundreds of megabytes, and decode them between two steps.
    """

    requests: list[Request]

    def with_prompts(self) -> list[Request]:
        """Return the requests, all of which have the prompt as one object."""
        prompt = self.requests[0].prompt_token_ids
        return [replace(request, prompt_token_ids=prompt) for request in self.requests]


def to_add(requests: Iterable[Request]) -> list[AddRequests]:
    """Return a message for each prompt. The forks of a request follow it."""
    groups: list[list[Request]] = []
    for request in requests:
        if request.fork_of is None:
            groups.append([request])
        else:
            groups[-1].append(replace(request, prompt_token_ids=()))
    return [AddRequests(group) for group in groups]


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


ToEngine = AddRequests | AbortRequests | LoadAdapter | UnloadAdapter | Ping | Shutdown


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
