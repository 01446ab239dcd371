"""Logs a line about the server's load every 10 s while there are requests, the first one 10 s after they begin."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from octavo_engine.engine.scheduler_stats import SchedulerStats

log = logging.getLogger("octavo.load")

INTERVAL = 10.0
_READINGS = 10
"""Readings in an interval: an idle server's interval begins again with each."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Counters since the start of the process, at one time (monotonic seconds)."""

    at: float
    tokens: float
    rejected: float
    prefix_queried: int
    prefix_hit: int


@dataclass(frozen=True, slots=True)
class LoadReading:
    """The numbers of one log line."""

    stats: SchedulerStats
    queued: int
    """Requests that wait for their first step, by the server's own count."""
    counts: Counts

    @property
    def waiting(self) -> int:
        """Waiting requests: the larger of the server's and the engine's counts, as in /metrics."""
        return max(self.stats.waiting, self.queued)


def line(before: Counts, now: LoadReading) -> tuple[str, dict[str, float | None]] | None:
    """Return the line and its numbers by name; None if nothing runs, waits, was generated or was rejected meanwhile."""
    counts, stats = now.counts, now.stats
    tokens, rejected = counts.tokens - before.tokens, counts.rejected - before.rejected
    if not (stats.running or now.waiting or tokens or rejected):
        return None
    queried = counts.prefix_queried - before.prefix_queried
    rate = tokens / (counts.at - before.at)
    hits = (counts.prefix_hit - before.prefix_hit) / queried if queried else None
    text = (
        f"running {stats.running}, waiting {now.waiting}, {rate:.1f} tokens/s, KV cache {stats.kv_usage:.0%}, "
        f"prefix hits {'-' if hits is None else f'{hits:.0%}'}, rejected {rejected:.0f}"
    )
    numbers = {
        "running": stats.running,
        "waiting": now.waiting,
        "tokens_per_second": round(rate, 2),
        "kv_cache_usage": round(stats.kv_usage, 4),
        "prefix_hit_ratio": None if hits is None else round(hits, 4),
        "rejected": rejected,
    }
    return text, numbers


async def log_load(read: Callable[[], LoadReading], interval: float = INTERVAL) -> None:
    """Log a line every `interval` seconds until cancelled; its rates and rejections are those of the last interval.

    An interval does not begin while the server is idle. So the first line after a pause covers a whole interval of
    requests, and on a terminal it does not come in the middle of the first short answer.
    """
    before: Counts | None = None
    while True:
        pause = interval / _READINGS
        try:
            now = read()
            found = None if before is None else line(before, now)
            if before is None or found is None:
                before = now.counts
            elif now.counts.at - before.at >= interval:
                log.info("%s", found[0], extra={"fields": found[1]})
                before = now.counts
        except Exception:  # an error in a log line must not end the server
            pause = interval
            log.exception("the load cannot be logged; trying again in %g s", pause)
        await asyncio.sleep(pause)


def counts_now(stats: SchedulerStats, tokens: float, rejected: float) -> Counts:
    """Return the counters with the present time."""
    return Counts(time.monotonic(), tokens, rejected, stats.prefix_queried_tokens, stats.prefix_hit_tokens)
