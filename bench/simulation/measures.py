"""The figures of a recording as one flat table, so that two runs can be shown side by side."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from bench.simulation.replay import Recording, Timeline
from octavo_engine.engine.scheduler_stats import SchedulerStats


@dataclass(frozen=True, slots=True)
class Measure:
    """A line of the table."""

    name: str
    unit: str
    value: float
    digits: int = 1


def measures(recording: Recording, block_size: int) -> list[Measure]:
    """Return all figures of a run."""
    timelines, stats, seconds = recording.timelines, recording.stats, recording.seconds
    answered = sum(timeline.tokens for timeline in timelines)
    states = [state for _, state in recording.series[:-1]]
    return [
        Measure("duration", "s", seconds),
        Measure("requests", "/s", len(timelines) / seconds, 2),
        Measure("output tokens", "/s", answered / seconds, 0),
        *_percentiles("TTFT", ttft(timelines), (50, 90, 99)),
        *_percentiles("ITL", np.asarray(recording.gaps), (50, 90, 99)),
        Measure("device busy", "%", 100 * recording.device_seconds / seconds),
        Measure("running, mean", "", _mean(states, lambda state: state.running)),
        Measure("waiting, mean", "", _mean(states, lambda state: state.waiting)),
        Measure("waiting, most", "", max((state.waiting for state in states), default=0), 0),
        Measure("KV usage, mean", "%", 100 * _mean(states, lambda state: state.kv_blocks_used / state.kv_blocks_total)),
        Measure("KV waste", "%", 100 * kv_waste(states, block_size), 2),
        Measure("preemptions", "", stats.preemptions, 0),
        Measure("recompute tax", "%", 100 * stats.recomputed_tokens / max(1, recording.planned_tokens), 2),
        Measure("blocks swapped out", "", stats.swapped_out_blocks, 0),
        Measure("blocks swapped in", "", stats.swapped_in_blocks, 0),
        Measure("prefix hits", "%", 100 * stats.prefix_hit_tokens / max(1, stats.prefix_queried_tokens)),
        Measure("target met", "% of time", 100 * _mean(states, lambda state: state.target_met)),
        Measure("steps", "", recording.steps, 0),
        Measure("scheduler", "us/step (real)", 1e6 * recording.scheduler_seconds / max(1, recording.steps), 0),
    ]


def ttft(timelines: Sequence[Timeline]) -> np.ndarray:
    """Return the seconds from arrival to first token of each request."""
    return np.asarray([timeline.first_token - timeline.arrival for timeline in timelines])


def kv_waste(states: Sequence[SchedulerStats], block_size: int) -> float:
    """Return the share of the slots of used blocks that hold no token, over the whole run."""
    used = sum(state.kv_blocks_used for state in states) * block_size
    return sum(state.kv_wasted_slots for state in states) / used if used else 0.0


def by_tenant(recording: Recording) -> dict[str, dict[str, float]]:
    """Return each tenant's requests, the tokens computed for it, and TTFT in seconds; empty for a single tenant."""
    groups: dict[str, list[Timeline]] = defaultdict(list)
    for timeline in recording.timelines:
        groups[timeline.ask.tenant].append(timeline)
    if len(groups) < 2:
        return {}
    return {tenant: _of_tenant(timelines) for tenant, timelines in sorted(groups.items())}


def _of_tenant(timelines: list[Timeline]) -> dict[str, float]:
    p50, p90 = np.percentile(ttft(timelines), (50, 90))
    tokens = sum(len(timeline.ask.prompt) - timeline.cached + timeline.tokens for timeline in timelines)
    return {"requests": len(timelines), "tokens": tokens, "ttft_p50": float(p50), "ttft_p90": float(p90)}


def _percentiles(name: str, seconds: np.ndarray, percents: tuple[int, ...]) -> list[Measure]:
    values = np.percentile(seconds, percents) if len(seconds) else [float("nan")] * len(percents)
    return [Measure(f"{name} p{p}", "ms", 1e3 * float(v)) for p, v in zip(percents, values, strict=True)]


def _mean(states: Sequence[SchedulerStats], value: Callable[[SchedulerStats], float]) -> float:
    return sum(value(state) for state in states) / max(1, len(states))
