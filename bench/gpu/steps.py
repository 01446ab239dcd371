"""Times steps of the real engine (scheduler, worker, loop) with a given batch and context.

Prompts are random token ids, so that the prefix cache has none of them and every context is read from memory.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from octavo_engine.config import EngineConfig
from octavo_engine.core.request import Request
from octavo_engine.core.step import StepOutputs
from octavo_engine.engine.loop import EngineLoop
from octavo_engine.engine.startup.start_engine import start_engine
from octavo_engine.sampling_params import SamplingParams

_FULL = 0.94
"""The largest share of the KV cache for one case: the scheduler reserves some for running requests to grow."""


@contextmanager
def engine(model: str, **settings: Any) -> Iterator[EngineLoop]:
    """Load an engine with these settings of EngineConfig, and close it at the end of the block."""
    free_memory()
    loop = start_engine(EngineConfig(model=model, **settings), lambda *_: None)
    try:
        yield loop
    finally:
        loop.close()


def free_memory() -> None:
    """Free the device memory of engines that no longer exist: the next engine takes nine tenths of the free memory."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@dataclass
class Steady:
    """Rounds of decode steps, all sequences decoding in every one."""

    wall: list[float] = field(default_factory=list)
    """Seconds of a step in each round, measured on the host: the time that a user waits for a token."""
    device: list[float] = field(default_factory=list)
    """Seconds of every step, between its first and last event on the device."""
    context: float = 0.0
    """Tokens of a sequence's context, on average over sequences and rounds."""
    profile: Any = None
    """PyTorch's profile of one more round, if one was requested."""
    profiled_wall: float = 0.0
    """Seconds of a step in that round."""


class TooLargeError(RuntimeError):
    """The KV cache is too small for the case."""


@dataclass
class Driver:
    """Runs one case on an engine."""

    loop: EngineLoop
    steps: int = 32
    """Steps per round."""
    rounds: int = 5
    random: random.Random = field(default_factory=lambda: random.Random(0))
    count: int = 0
    adapters: Sequence[str] = ()
    """Digests of the adapters that requests have in turn; empty: they are of the base."""

    def prompt(self, tokens: int) -> list[int]:
        """Return random token ids."""
        return self.random.choices(range(self.loop.info.vocab_size), k=tokens)

    def add(self, tokens: int, params: SamplingParams) -> str:
        """Add a request with a random prompt; returns its id."""
        self.count += 1
        name = f"request-{self.count}"
        self._ask(name, self.prompt(tokens), params)
        return name

    def _ask(self, name: str, prompt: list[int], params: SamplingParams) -> None:
        adapter = self.adapters[self.count % len(self.adapters)] if self.adapters else ""
        self.loop.add(Request(request_id=name, prompt_token_ids=tuple(prompt), sampling=params, adapter=adapter))

    def prefill(self, tokens: int) -> list[float]:
        """Return the seconds from a prompt's arrival to its first token, in each round."""
        self._check_room(1, tokens + 1)
        seconds = []
        for index in range(self.rounds + 1):
            prompt = self.prompt(tokens)
            begin = time.perf_counter()
            self._ask(f"prefill-{self.count}", prompt, SamplingParams(max_tokens=1, temperature=0.0))
            self.count += 1
            self.finish()
            if index:  # warm-up
                seconds.append(time.perf_counter() - begin)
        return seconds

    def after(self, past: int, tokens: int) -> list[float]:
        """Return the seconds to the first token of prompts with `tokens` new tokens after `past` cached ones."""
        self._check_room(1, past + (tokens + 1) * (self.rounds + 1))
        prefix, seconds = self.prompt(past), []
        for index in range(self.rounds + 2):
            prompt = prefix + (self.prompt(tokens) if index else [])
            begin = time.perf_counter()
            self._ask(f"after-{self.count}", prompt, SamplingParams(max_tokens=1, temperature=0.0))
            self.count += 1
            self.finish()
            if index > 1:  # the prefix, and a warm-up
                seconds.append(time.perf_counter() - begin)
        return seconds

    def beside(self, batch: int, context: int, tokens: int) -> list[float]:
        """Return the seconds to the first token of prompts of `tokens` that arrive while `batch` others decode."""
        most = context + 8 * (self.rounds + 2) + 32  # some steps each round, and until all decode
        self._check_room(batch + 1, max(most, tokens + 1))
        params = SamplingParams(max_tokens=most - context, temperature=0.0, ignore_eos=True)
        names = [self.add(context, params) for _ in range(batch)]
        self._until_all_decode(set(names))
        seconds = []
        for index in range(self.rounds + 1):
            begin = time.perf_counter()
            self._until_all_decode({self.add(tokens, SamplingParams(max_tokens=1, temperature=0.0))})
            if index:  # warm-up
                seconds.append(time.perf_counter() - begin)
        self.loop.abort(names)
        self.finish()
        return seconds

    def decode(self, *contexts: int, profile: bool = False, **sampling: Any) -> Steady:
        """Measure decode steps of one sequence for each of `contexts`, its mean context in tokens during the rounds."""
        batch = len(contexts)
        made = self.steps * (self.rounds + 1 + profile) + 1
        prompts = [max(1, context - made // 2) for context in contexts]
        self._check_room(batch, max(prompts) + made, sum(prompts) + batch * made)
        longest = self.loop.info.max_model_len - max(prompts)  # earlier ones decode while later ones are prefilled
        params = SamplingParams(**{"temperature": 0.0, **sampling, "max_tokens": longest, "ignore_eos": True})
        names = [self.add(prompt, params) for prompt in prompts]
        steady = Steady()
        tokens = self._until_all_decode(set(names))
        self._round(batch, Steady())
        for _ in range(self.rounds):
            steady.wall.append(self._round(batch, steady))
        steady.context = (sum(prompts) + tokens) / batch + self.steps * (1 + self.rounds / 2)
        if profile:
            self._profile(batch, steady)
        self.loop.abort(names)
        self.finish()
        return steady

    def _profile(self, batch: int, steady: Steady) -> None:
        from torch.profiler import ProfilerActivity

        activities = [ProfilerActivity.CUDA if torch.cuda.is_available() else ProfilerActivity.CPU]
        with torch.profiler.profile(activities=activities) as profile:
            steady.profiled_wall = self._round(batch, Steady())
            if torch.cuda.is_available():
                torch.cuda.synchronize()
        steady.profile = profile

    def _check_room(self, batch: int, tokens: int, together: int | None = None) -> None:
        """Raise TooLargeError unless `batch` sequences of up to `tokens` fit, of `together` tokens in sum if given."""
        info, together = self.loop.info, batch * tokens if together is None else together
        blocks = -(-together // info.block_size) + batch
        if batch > info.max_num_seqs:
            raise TooLargeError(f"{batch} sequences are more than --max-num-seqs {info.max_num_seqs}")
        if tokens > info.max_model_len:
            raise TooLargeError(f"{tokens} tokens are more than --max-model-len {info.max_model_len}")
        if blocks > int(_FULL * info.num_kv_blocks):
            have = info.num_kv_blocks * info.block_size
            raise TooLargeError(f"needs {together:,} tokens of KV cache, and {have:,} are there")

    def _until_all_decode(self, names: set[str]) -> int:
        """Compute all prompts until each request has its first token; return the number of tokens sampled meanwhile."""
        made = 0
        while names:
            outputs = self.loop.step()
            made += _count(outputs)
            names -= {event.request_id for event in outputs.events if event.token_ids}
        return made

    def _round(self, batch: int, steady: Steady) -> float:
        """Return the mean seconds of a step in a round; RuntimeError if not all sequences took part in each."""
        before = self.loop.report().preemptions
        begin, steps = time.perf_counter(), 0
        while steps < self.steps:
            if (tokens := _count(self.loop.step())) not in (0, batch):
                raise RuntimeError(f"a step gave {tokens} tokens, not {batch}")
            steps += tokens == batch
        seconds = (time.perf_counter() - begin) / steps
        report = self.loop.report()
        if report.preemptions != before:
            raise RuntimeError("a request was preempted")
        steady.device += report.step_seconds
        return seconds

    def finish(self) -> None:
        """Run until no request is left."""
        while self.loop.has_work:
            _count(self.loop.step())


def _count(outputs: StepOutputs) -> int:
    """Return the number of tokens from one step; RuntimeError if a request failed in it."""
    for event in outputs.events:
        if event.error is not None:
            raise RuntimeError(f"{event.request_id}: {event.error}")
    return len(outputs.token_ids) + sum(len(event.token_ids) for event in outputs.events)
