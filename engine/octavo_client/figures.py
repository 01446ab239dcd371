"""The figures of a benchmark: one request's times, the figures of one load, and the report of a run."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any


@dataclass(slots=True)
class Timing:
    """The times of one request, as its client saw them: seconds since it was due, NaN for what did not happen."""

    first_token: float = math.nan
    end: float = math.nan
    between: list[float] = field(default_factory=list)
    """Seconds between each piece of text and the one before it."""
    prompt_tokens: int = 0
    output_tokens: int = 0
    asked_tokens: int = 0
    """The answer's length that was asked for."""
    due: float = 0.0
    """When the request was due, in seconds since the load began."""
    error: str | None = None


@dataclass(slots=True)
class Percentiles:
    """Mean and percentiles of one measurement, in milliseconds."""

    mean: float
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True)
class Load:
    """The arrival of requests: `users` who each wait for their answer, or `rate` requests a second.

    One of them is None.

    With users the loop is closed; at a rate it is open: Poisson arrivals, independent of earlier answers.
    """

    users: int | None = None
    rate: float | None = None

    @property
    def value(self) -> float:
        """Users or requests a second."""
        return self.rate if self.users is None else self.users  # type: ignore[return-value]

    @property
    def unit(self) -> str:
        """The unit of `value`."""
        return "requests/s" if self.users is None else "users"

    def __str__(self) -> str:
        if self.users is None:
            return f"{self.value:.3g} {self.unit}"
        return f"{self.users} user{'' if self.users == 1 else 's'}"


@dataclass(slots=True)
class Level:
    """The figures of one load."""

    concurrency: int | None
    """Users; None in an open loop."""
    rate: float | None
    """Requests a second that were to be sent; None in a closed loop."""
    num_prompts: int
    failed: int
    duration_s: float
    prompt_tokens: int
    output_tokens: int
    short: int
    """Answers that had fewer tokens than were asked for."""
    output_tokens_per_s: float
    requests_per_s: float
    ttft_ms: Percentiles
    itl_ms: Percentiles
    e2e_ms: Percentiles
    kept_up: float | None = None
    """In an open loop: answers that ended while the second half of the requests was sent, as a share of that half."""
    first_error: str | None = None

    @property
    def load(self) -> Load:
        """The load that the server was given."""
        return Load(self.concurrency, self.rate)


@dataclass(frozen=True, slots=True)
class Saturation:
    """The saturation point of a server: the largest load that it could serve."""

    value: float | None
    """Users or requests a second; None if even the lowest load was too much."""
    unit: str
    output_tokens_per_s: float | None
    criterion: str


@dataclass(slots=True)
class Report:
    """The report of one run. `--json` writes it, and so does bench/transformers_generate.py."""

    target: str
    model: str
    time: str
    workload: str
    """A description of the prompts and answers, such as their lengths."""
    levels: list[Level]
    saturation: Saturation | None = None


def percentiles(seconds: Sequence[float]) -> Percentiles:
    """Return nearest-rank percentiles in milliseconds; without any measurement all are NaN."""
    if not seconds:
        return Percentiles(math.nan, math.nan, math.nan, math.nan)
    ordered = sorted(seconds)
    ranks = (ordered[max(0, math.ceil(q * len(ordered)) - 1)] * 1000 for q in (0.5, 0.9, 0.99))
    return Percentiles(sum(ordered) / len(ordered) * 1000, *ranks)


def summarize(load: Load, timings: Sequence[Timing], duration: float) -> Level:
    """Return the figures of a load that took `duration` seconds; failed requests count only as failed."""
    good = [timing for timing in timings if timing.error is None]
    output = sum(timing.output_tokens for timing in good)
    return Level(
        concurrency=load.users,
        rate=load.rate,
        num_prompts=len(timings),
        failed=len(timings) - len(good),
        duration_s=duration,
        prompt_tokens=sum(timing.prompt_tokens for timing in good),
        output_tokens=output,
        short=sum(timing.output_tokens < timing.asked_tokens for timing in good),
        output_tokens_per_s=output / duration,
        requests_per_s=len(good) / duration,
        ttft_ms=percentiles([timing.first_token for timing in good if not math.isnan(timing.first_token)]),
        itl_ms=percentiles([gap for timing in good for gap in timing.between]),
        e2e_ms=percentiles([timing.end for timing in good]),
        kept_up=None if load.rate is None else _kept_up(timings),
        first_error=next((timing.error for timing in timings if timing.error is not None), None),
    )


def _kept_up(timings: Sequence[Timing]) -> float | None:
    """Return `Level.kept_up` of an open loop; None if there were too few requests."""
    arrivals = sorted(timing.due for timing in timings)
    second = arrivals[len(arrivals) // 2 :]
    if len(second) < 2:
        return None
    begin, end = second[0], second[-1]
    answered = sum(timing.error is None and begin < timing.due + timing.end <= end for timing in timings)
    return answered / (len(second) - 1)


def now() -> str:
    """Return the time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def heading(report: Report, unit: str = "users") -> str:
    """Return the two lines above the rows of a table: what was measured, and the columns."""
    return (
        f"{report.target}  {report.model}  {report.workload}; times in ms; failed: requests without an answer; short: "
        "answers with fewer tokens than asked for\n"
        f"{unit:>10} {'tokens/s':>9} {'req/s':>6} {'TTFT p50':>9} {'p90':>7} {'p99':>7} "
        f"{'ITL p50':>8} {'p90':>6} {'p99':>6} {'E2E p50':>8} {'p90':>7} {'p99':>7} {'failed':>6} {'short':>6}"
    )


def row(level: Level) -> str:
    """Return one level as a row of the table."""
    first, between, total = level.ttft_ms, level.itl_ms, level.e2e_ms
    asked = str(level.concurrency) if level.rate is None else f"{level.rate:.2f}"
    return (
        f"{asked:>10} {level.output_tokens_per_s:>9.1f} {level.requests_per_s:>6.2f} "
        f"{first.p50:>9.1f} {first.p90:>7.1f} {first.p99:>7.1f} "
        f"{between.p50:>8.1f} {between.p90:>6.1f} {between.p99:>6.1f} "
        f"{total.p50:>8.0f} {total.p90:>7.0f} {total.p99:>7.0f} {level.failed:>6} {level.short:>6}"
    )


def to_json(report: Report) -> str:
    """Return the report as JSON, with six digits of each figure; one that could not be measured is null."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        if isinstance(value, list):
            return [plain(item) for item in value]
        if isinstance(value, float):
            return float(f"{value:.6g}") if math.isfinite(value) else None
        return value

    return json.dumps(plain(asdict(report)), indent=2) + "\n"
