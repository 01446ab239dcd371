"""`kubectl octavo top`: the load and speed of each LLMService, from two readings of its pods' /metrics. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from octavo_operator.kubectl.table import table

_HEADER = (
    "NAMESPACE",
    "NAME",
    "PODS",
    "RUNNING",
    "WAITING",
    "KV%",
    "TOK/S",
    "HIT%",
    "TTFT-P50",
    "TTFT-P95",
    "REJECTED/S",
)
_BUCKET = "octavo_time_to_first_token_seconds_bucket"
_NO_LOAD = frozenset({"invalid", "unauthorized"})
"""Reasons of rejections that an idle server would give too."""
_WANTED = frozenset(
    {
        "octavo_requests_running",
        "octavo_requests_waiting",
        "octavo_kv_cache_usage_ratio",
        "octavo_generation_tokens_total",
        "octavo_prefix_cache_queried_tokens_total",
        "octavo_prefix_cache_hit_tokens_total",
        "octavo_requests_rejected_total",
    }
)


@dataclass(frozen=True)
class Reading:
    """One pod's metrics at one time: sums over their labels, and the buckets of TTFT by their bounds in seconds."""

    values: Mapping[str, float]
    buckets: Mapping[float, float] = field(default_factory=dict)


@dataclass(frozen=True)
class PodReadings:
    """Two readings of a pod, `seconds` apart. A pod that answered only once, or never, has none of these."""

    before: Reading
    after: Reading
    seconds: float

    def rate(self, name: str) -> float:
        """Return a counter's growth per second; one that restarted meanwhile counts from 0."""
        return self.growth(name) / self.seconds

    def growth(self, name: str) -> float:
        """Return a counter's growth between the two readings."""
        return _growth(self.before.values.get(name, 0.0), self.after.values.get(name, 0.0))


def read(text: str) -> Reading:
    """Return a reading from what /metrics answers. ValueError: it is no such text."""
    values: defaultdict[str, float] = defaultdict(float)
    buckets: defaultdict[float, float] = defaultdict(float)
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name in _WANTED and sample.labels.get("reason") not in _NO_LOAD:
                    values[sample.name] += sample.value
                elif sample.name == _BUCKET:
                    buckets[float(sample.labels["le"])] += sample.value
    except LookupError as error:  # the parser looks for the end of a label beyond that of the line
        raise ValueError(f"/metrics cannot be read: {error}") from None
    return Reading(values, buckets)


def top_table(services: Mapping[tuple[str, str], Sequence[PodReadings | None]]) -> str:
    """Return a row for each service, by namespace and name; None stands for a pod whose metrics could not be read."""
    return table(_HEADER, [(*name, *_row(pods)) for name, pods in services.items()])


def _row(pods: Sequence[PodReadings | None]) -> tuple[str, ...]:
    known = [pod for pod in pods if pod is not None]
    count = str(len(pods)) if len(known) == len(pods) else f"{len(known)} of {len(pods)}"
    if not known:
        return (count, *("-" for _ in _HEADER[3:]))
    queried = sum(pod.growth("octavo_prefix_cache_queried_tokens_total") for pod in known)
    hit = sum(pod.growth("octavo_prefix_cache_hit_tokens_total") for pod in known)
    fullest = max(pod.after.values.get("octavo_kv_cache_usage_ratio", 0.0) for pod in known)
    return (
        count,
        f"{_now(known, 'octavo_requests_running'):.0f}",
        f"{_now(known, 'octavo_requests_waiting'):.0f}",
        f"{100 * fullest:.0f}",
        f"{sum(pod.rate('octavo_generation_tokens_total') for pod in known):.1f}",
        f"{100 * hit / queried:.0f}" if queried else "-",
        _first_token(known, 0.5),
        _first_token(known, 0.95),
        f"{sum(pod.rate('octavo_requests_rejected_total') for pod in known):.1f}",
    )


def _now(pods: Sequence[PodReadings], name: str) -> float:
    return sum(pod.after.values.get(name, 0.0) for pod in pods)


def _first_token(pods: Sequence[PodReadings], share: float) -> str:
    """Return the bound of the bucket that holds this share of the first tokens that came between the readings."""
    counts: defaultdict[float, float] = defaultdict(float)
    for pod in pods:
        for bound, count in pod.after.buckets.items():
            counts[bound] += _growth(pod.before.buckets.get(bound, 0.0), count)
    total = counts.get(float("inf"), 0.0)
    if not total:
        return "-"
    bounds = sorted(counts)
    bound = next(each for each in bounds if counts[each] >= share * total)
    return f"<{bound:g}s" if bound != float("inf") else f">{bounds[-2]:g}s"


def _growth(before: float, after: float) -> float:
    return after - before if after >= before else after
