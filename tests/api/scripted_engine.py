"""A scripted stand-in for EngineClient: it gives the answers that a test sets, at the moments that the test chooses.

It has no model and computes nothing. It has the client's interface, so that tests can check how the HTTP side handles
any answer, failure or delay of an engine. Tests of the real engine are in test_end_to_end.py.
"""

from __future__ import annotations

import asyncio
import contextlib
from array import array
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from octavo_engine.core.request import Request
from octavo_engine.core.step import RequestOutput, StepOutputs
from octavo_engine.engine.client import EngineState, error_of
from octavo_engine.engine.info import AdapterInfo, EmbeddingInfo, EngineInfo
from octavo_engine.engine.messages import Failed, Loading, Outputs
from octavo_engine.engine.output_stream import OutputStream
from octavo_engine.engine.scheduler_stats import SchedulerStats
from octavo_engine.engine.watchdog import Watchdog
from octavo_engine.errors import AdapterNotFoundError, EngineDeadError, ModelLoadError
from octavo_engine.model_outputs import PromptOutput, TokenLogprobs
from octavo_engine.request_checks import check_sampling

EOS = 2
READY = EngineInfo(
    max_model_len=512,
    vocab_size=49152,
    eos_token_ids=(EOS,),
    block_size=16,
    num_kv_blocks=64,
    max_num_seqs=4,
    dtype="float32",
    device="scripted",
    attention_backend="scripted",
    load_seconds=0.0,
    embedding=EmbeddingInfo(size=4),
)


@dataclass
class Script:
    """The answer to every request."""

    tokens: list[int] = field(default_factory=list)
    """The tokens of the answer. EOS follows, or `length` once max_tokens are reached."""
    gap: float = 0.0
    """Seconds between tokens."""
    hold_after: int | None = None
    """Tokens after which the answer waits for `release`."""
    hold_prompts_over: int = 0
    """`hold_after` applies only to answers to prompts with more tokens than this."""
    finish: str | None = None
    """The finish reason with which the answer ends instead: abort, timeout, error or invalid."""
    step: int = 1
    """Tokens per output."""
    queue_seconds: float = 0.0
    repeats_prompt: bool = False
    """Whether each answer is its own prompt, instead of `tokens`."""


class ScriptedEngine:
    """The stand-in engine. With `load` it stays in the loading state until `finish_loading` or `fail`."""

    def __init__(self, *, load: bool = True) -> None:
        self.state = EngineState()
        self.watchdog = Watchdog(30.0)
        self.on_step: Callable[[Outputs], None] | None = None
        self.script = Script()
        self.requests: list[Request] = []
        self.aborted: list[str] = []
        self.release = asyncio.Event()
        self._load = load
        self._settled = asyncio.Event()
        self._ended = asyncio.Event()
        self._streams: set[OutputStream] = set()
        self._playing: dict[str, tuple[OutputStream, asyncio.Task[None]]] = {}

    async def start(self) -> None:
        if self._load:
            self.finish_loading()
        else:
            self.state.phase, self.state.progress = "loading", Loading("loading", 0.25, "1 of 4 files")

    def finish_loading(self) -> None:
        self.state.phase, self.state.ready = "ready", READY
        self._settled.set()

    def fail(self, failed: Failed) -> None:
        """Fail, before or after loading."""
        self.state.phase, self.state.failed = "dead", failed
        for stream in self._streams:
            stream.fail(EngineDeadError(failed.message))
        self._settled.set()
        self._ended.set()

    async def wait_ready(self) -> EngineInfo:
        await self._settled.wait()
        if self.state.failed is not None:
            raise error_of(self.state.failed)
        assert self.state.ready is not None
        return self.state.ready

    async def closed(self) -> Failed | None:
        await self._ended.wait()
        return self.state.failed

    async def stop(self) -> None:
        self._ended.set()

    def report(self, **stats: Any) -> None:
        """Report statistics, as the engine does at the end of a step."""
        self.state.stats = SchedulerStats(**stats)
        if self.on_step is not None:
            self.on_step(Outputs(StepOutputs(), self.state.stats))

    @contextlib.asynccontextmanager
    async def generate(self, requests: Sequence[Request], outputs: OutputStream) -> AsyncIterator[None]:
        if self.state.failed is not None:
            outputs.fail(EngineDeadError(self.state.failed.message))
        self._streams.add(outputs)
        for request in requests:
            check_sampling(request.sampling)  # as in the real engine: the server must refuse these first
            self.requests.append(request)
            self._playing[request.request_id] = outputs, asyncio.create_task(self._play(request, outputs))
        try:
            yield
        finally:
            self._streams.discard(outputs)
            await self.abort(sorted(outputs.unfinished))
            for request in requests:
                self._playing.pop(request.request_id, None)

    async def load_adapter(self, name: str, path: str) -> None:
        if path == "missing":
            raise AdapterNotFoundError("missing: there is no such directory")
        if path == "broken":
            raise ModelLoadError("broken: the adapter has rank 99, and --max-lora-rank is 16")
        if path == "killed":
            raise EngineDeadError("the engine process was killed by SIGKILL")
        if path.startswith("slow"):
            await asyncio.sleep(0.3)
        warning = "it was trained on another model" if path == "foreign" else ""
        self.state.adapters[name] = AdapterInfo(
            name=name, path=path, digest=f"digest of {path}", rank=8, created=7, warning=warning
        )

    async def unload_adapter(self, name: str) -> None:
        del self.state.adapters[name]

    async def abort(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            outputs, playing = self._playing[request_id]
            playing.cancel()
            outputs.unfinished.discard(request_id)
            self.aborted.append(request_id)

    async def _play(self, request: Request, outputs: OutputStream) -> None:
        script, sampling = self.script, request.sampling
        answer = list(request.prompt_token_ids) if script.repeats_prompt else script.tokens
        tokens = (answer if script.finish else [*answer, EOS])[: sampling.max_tokens]
        hold_after = script.hold_after if len(request.prompt_token_ids) > script.hold_prompts_over else None
        sent = 0
        if not sampling.max_tokens:  # only the prompt is asked for
            prompt = scripted_prompt(request)
            outputs.put(RequestOutput(request.request_id, (), finish_reason="length", prompt=prompt))
        while sent < len(tokens):
            if hold_after is not None and sent >= hold_after:
                await self.release.wait()
            elif script.gap:
                await asyncio.sleep(script.gap)
            else:
                await asyncio.sleep(0)
            group = tuple(tokens[sent : sent + script.step])
            sent += len(group)
            output = self._output(request, group, done=sent >= len(tokens) and script.finish is None)
            outputs.put(replace(output, prompt=scripted_prompt(request) if sent == len(group) else None))
        if hold_after is not None and sent >= hold_after:
            await self.release.wait()
        if script.finish is not None:
            error = "NaN in the logits" if script.finish == "error" else None
            outputs.put(RequestOutput(request.request_id, (), finish_reason=script.finish, error=error))

    def _output(self, request: Request, group: tuple[int, ...], *, done: bool) -> RequestOutput:
        stopped = group[-1] in request.sampling.stop_token_ids
        top = request.sampling.logprobs
        return RequestOutput(
            request.request_id,
            group,
            logprobs=() if top is None else tuple(scripted_logprobs(token, top) for token in group),
            finish_reason=("stop" if stopped else "length") if done else None,
            stop_token=group[-1] if done and stopped else None,
            cached_tokens=16 if len(request.prompt_token_ids) > 16 else 0,
            queue_seconds=self.script.queue_seconds,
        )


def scripted_prompt(request: Request) -> PromptOutput | None:
    """Return the prompt's own output, if it was asked for."""
    if request.pooled:
        return PromptOutput(pooled=array("f", [3.0, 4.0 * sum(request.prompt_token_ids), 0.0, 0.5]).tobytes())
    if (top := request.sampling.prompt_logprobs) is None:
        return None
    return PromptOutput(tuple(scripted_logprobs(token, top) for token in request.prompt_token_ids[1:]))


def scripted_logprobs(token: int, top: int) -> TokenLogprobs:
    """Return log probabilities in which the token is second to token 100; token 101 is impossible."""
    others = ((100, -0.25), (token, -1.5), (101, float("-inf")))
    return TokenLogprobs(token, -1.5, 2, others[:top])
