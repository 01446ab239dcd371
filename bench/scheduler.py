"""`make bench-scheduler`: measures the host's time for `plan` and `update` in each step, and for prefix caching.

All requests decode and none waits. Their contexts have mixed lengths, so that a sixteenth of them fills a block in
every step. A step is one `plan` and one `update`, one step apart as in the engine's loop, with results prepared
beforehand. All times are CPU time of the single thread, from the best of some repetitions, so that other programs
affect them little.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from bench.report import save
from bench.simulation.cost_model import COSTS
from octavo_engine.core.kv_groups import KVGroup
from octavo_engine.core.kv_memory import KVMemory
from octavo_engine.core.request import Request
from octavo_engine.core.scheduler import Scheduler
from octavo_engine.core.settings import SchedulerSettings
from octavo_engine.core.step import StepPlan, StepResult
from octavo_engine.sampling_params import SamplingParams

BLOCK = 16
_TARGETS = {256: 0.3, 1024: 1.0}
"""The target of the median time of a step in milliseconds, by the number of running requests."""
_MIXED = (256, 768)
"""Prompt lengths of decoding requests."""


@dataclass(frozen=True, slots=True)
class Level:
    """Milliseconds per step with `running` decoding requests."""

    running: int
    plan: float
    """Median."""
    update: float
    """Median."""
    step: float
    """Median of both together."""
    step_p99: float
    uncached_step: float
    """Median of both together without prefix caching."""
    device_step: float
    """The time of such a step on the simulated H200."""


@dataclass(frozen=True, slots=True)
class Prefill:
    """The cost of prefix caching for a prompt that is not in the cache, and the device's time for the prompt."""

    tokens: int
    caching_us: float
    """Microseconds per token for hashing, lookup and insertion."""
    device_us: dict[str, float]
    """Microseconds per token in a step of such prompts, by cost model."""


def build(running: int, steps: int, longest: int, *, prefix_caching: bool) -> Scheduler:
    """Return a scheduler with room for all requests, and for all prompts in one step."""
    model_len, batch = longest + steps + BLOCK, running * longest
    settings = SchedulerSettings(max_num_seqs=running, max_num_batched_tokens=batch, max_model_len=model_len)
    blocks = running * (model_len // BLOCK + 1) * 2
    return Scheduler(settings, KVMemory([KVGroup(blocks)], BLOCK, prefix_caching=prefix_caching, max_chunk=batch))


def add(scheduler: Scheduler, count: int, lengths: tuple[int, int], rng: random.Random) -> None:
    """Add requests with random tokens whose answers last to the end of the context."""
    sampling = SamplingParams(max_tokens=scheduler.settings.max_model_len, stop_token_ids=(2,))
    for number in range(count):
        tokens = [rng.randrange(3, 50_000) for _ in range(rng.randint(*lengths))]
        request = Request(request_id=f"request-{number}", prompt_token_ids=tuple(tokens), sampling=sampling)
        scheduler.add(request, float(number))


def result_of(plan: StepPlan) -> StepResult:
    """Return a result with one token for each sampled row."""
    samples = len(plan.decode_rows) + sum(chunk.samples for chunk in plan.chunks)
    return StepResult(plan.step, list(range(3, 3 + samples)), seconds=0.01)


def settle(scheduler: Scheduler) -> StepPlan:
    """Compute all prompts; returns the launched plan of the first step in which every request decodes."""
    now = 0.0
    while (plan := scheduler.schedule(now)) is not None:
        if not plan.chunks:
            return plan
        now += 0.01
        scheduler.update(plan, result_of(plan), now)
    raise RuntimeError("there is nothing to decode")


def time_steps(running: int, steps: int, *, prefix_caching: bool) -> tuple[list[tuple[float, float]], float]:
    """Return the seconds of `plan` and of `update` for each step, and those of such a step on the simulated H200."""
    scheduler = build(running, steps + 2, _MIXED[1], prefix_caching=prefix_caching)
    add(scheduler, running, _MIXED, random.Random(running))
    launched, now = settle(scheduler), 100.0
    seconds = []
    for _ in range(steps):
        now += 0.01
        result = result_of(launched)
        begin = time.thread_time()
        plan = scheduler.schedule(now)
        middle = time.thread_time()
        scheduler.update(launched, result, now)
        seconds.append((middle - begin, time.thread_time() - middle))
        if plan is None or len(plan.decode_rows) != running:
            raise RuntimeError("not every request decodes in every step")
        launched = plan
    return seconds, COSTS["h200-8b"].seconds(launched)


def measure(running: int, steps: int, repeats: int) -> Level:
    """Return one line of the table: the repetition with the lowest median, with and without prefix caching."""
    cached, uncached = (
        min((time_steps(running, steps, prefix_caching=on) for _ in range(repeats)), key=lambda run: _median(run[0]))
        for on in (True, False)
    )
    seconds, device = cached
    both = sorted(plan + update for plan, update in seconds)
    return Level(
        running=running,
        plan=1e3 * statistics.median(plan for plan, _ in seconds),
        update=1e3 * statistics.median(update for _, update in seconds),
        step=1e3 * _median(seconds),
        step_p99=1e3 * both[int(0.99 * len(both))],
        uncached_step=1e3 * _median(uncached[0]),
        device_step=1e3 * device,
    )


def _median(seconds: Sequence[tuple[float, float]]) -> float:
    return statistics.median(plan + update for plan, update in seconds)


def measure_prefill(repeats: int) -> Prefill:
    """Return the time that prefix caching adds for new prompts; the lowest of some runs."""
    prompt, count = 1024, 64
    device = {name: _device_us(name, prompt) for name in COSTS}
    least = {
        caching: min(_prefill_seconds(prompt, count, caching) for _ in range(repeats)) for caching in (True, False)
    }
    return Prefill(prompt, 1e6 * (least[True] - least[False]) / (prompt * count), device)


def _prefill_seconds(prompt: int, count: int, prefix_caching: bool) -> float:
    scheduler = build(count, 1, prompt, prefix_caching=prefix_caching)
    add(scheduler, count, (prompt, prompt), random.Random(1))
    begin = time.thread_time()
    settle(scheduler)
    return time.thread_time() - begin


def _device_us(name: str, prompt: int) -> float:
    scheduler = build(8, 1, prompt, prefix_caching=False)
    add(scheduler, 8, (prompt, prompt), random.Random(1))
    plan = scheduler.schedule(0.0)
    if plan is None:
        raise RuntimeError("there is nothing to compute")
    return 1e6 * COSTS[name].seconds(plan) / plan.num_tokens


def table(levels: Sequence[Level], prefill: Prefill) -> str:
    """Return the results as Markdown."""
    lines = [
        "| requests decoding | plan ms | update ms | both ms | p99 | target | µs a request | prefix caching, % |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for level in levels:
        target = _TARGETS.get(level.running)
        said = "" if target is None else f"< {target} {'met' if level.step < target else '**missed**'}"
        share = 100 * (level.step - level.uncached_step) / level.device_step
        lines.append(
            f"| {level.running} | {level.plan:.3f} | {level.update:.3f} | {level.step:.3f} | {level.step_p99:.3f} | "
            f"{said} | {1e3 * level.step / level.running:.2f} | {share:.2f} |"
        )
    us = prefill.caching_us
    shares = " and ".join(f"{100 * us / device:.2f} % of {name}'s" for name, device in prefill.device_us.items())
    lines += [
        "",
        "The last column: what prefix caching adds, of a step of the simulated h200-8b, which hides it. To prompts of",
        f"{prefill.tokens} tokens that were not sent before it adds {us:.3f} µs a token, {shares} step time.",
    ]
    return "\n".join(lines)


def main() -> None:
    """Entry point of `python -m bench.scheduler`."""
    parser = argparse.ArgumentParser(prog="bench.scheduler", description=__doc__)
    parser.add_argument("--running", default="64,256,512,1024,2048")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--name", default="scheduler", help="of the result files, after the date")
    args = parser.parse_args()
    levels = [measure(int(running), args.steps, args.repeats) for running in args.running.split(",")]
    prefill = measure_prefill(args.repeats)
    machine = {"cores": len(os.sched_getaffinity(0)), "python": platform.python_version()}
    result = {"machine": machine, "steps": args.steps, "levels": list(map(asdict, levels)), "prefill": asdict(prefill)}
    said = f"`make bench-scheduler`: {args.steps} steps a line, CPU time, the best of {args.repeats} repetitions. "
    said += f"Python {machine['python']}, {machine['cores']} cores."
    save(args.name, result, lambda title: f"# {title}\n\n{said}\n\n{table(levels, prefill)}\n")


if __name__ == "__main__":
    main()
