"""Sends prompts to a server, from users who each wait for their answer or at a given rate, and times the answers."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from tqdm import tqdm

from octavo_client.figures import Level, Load, Timing, summarize
from octavo_client.workload import Prompt

Complete = Callable[[Prompt, float | None], Awaitable[Timing]]
"""Times one request. The second argument is when it was due (`time.perf_counter`), None for now."""


async def measure(complete: Complete, prompts: Sequence[Prompt], load: Load, seed: int = 0) -> Level:
    """Send all prompts at this load and return its figures; `seed` decides an open loop's arrival times."""
    with tqdm(total=len(prompts), desc=str(load), unit="request", leave=False, disable=None) as bar:
        if load.rate is None:
            timings, duration = await _closed_loop(complete, prompts, load.users or 1, bar)
        else:
            timings, duration = await _open_loop(complete, prompts, arrivals(len(prompts), load.rate, seed), bar)
    return summarize(load, timings, duration)


def arrivals(count: int, rate: float, seed: int) -> list[float]:
    """Return the times of `count` Poisson arrivals in seconds; the first is at 0."""
    randomness = random.Random(f"arrivals {seed}")
    times = [0.0]
    while len(times) < count:
        times.append(times[-1] + randomness.expovariate(rate))
    return times[:count]


async def _closed_loop(
    complete: Complete, prompts: Sequence[Prompt], users: int, bar: tqdm[Any]
) -> tuple[list[Timing], float]:
    """Send all prompts from `users` users, each its next one when its last one is answered."""
    waiting = iter(prompts)
    timings: list[Timing] = []
    start = time.perf_counter()

    async def user() -> None:
        for prompt in waiting:
            due = time.perf_counter() - start
            timing = await complete(prompt, None)
            timing.due = due
            timings.append(timing)
            bar.update()

    await asyncio.gather(*(user() for _ in range(users)))
    return timings, time.perf_counter() - start


async def _open_loop(
    complete: Complete, prompts: Sequence[Prompt], times: Sequence[float], bar: tqdm[Any]
) -> tuple[list[Timing], float]:
    """Send each prompt at its time. A delay of the client itself counts as the server's: users would wait as well."""
    start = time.perf_counter()

    async def request(prompt: Prompt, at: float) -> Timing:
        await asyncio.sleep(start + at - time.perf_counter())
        timing = await complete(prompt, start + at)
        timing.due = at
        bar.update()
        return timing

    timings = await asyncio.gather(*map(request, prompts, times))
    return timings, time.perf_counter() - start
