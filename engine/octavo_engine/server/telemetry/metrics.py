"""The Prometheus metrics of HTTP requests, as octavo_* and as the vllm:* names that dashboards and gateways read.

All series exist, at 0, from the start of the process, and label values come from closed sets. Names and buckets of
vllm:* are those of vLLM 0.33 (`v1/metrics/loggers.py`, `buckets.py`), with some that vLLM has dropped but dashboards
still read. octavo_* has the same buckets, and further bounds at the thresholds of the alerts, since a quantile can only
be compared with a threshold that is a bound.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from math import inf
from typing import Literal, get_args

from prometheus_client import (
    CollectorRegistry,
    Counter,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from octavo_engine.engine.client import EngineState
from octavo_engine.engine.messages import Outputs
from octavo_engine.server.admission.refusal import CLIENT_ERRORS, Rejection
from octavo_engine.server.telemetry.engine_metrics import EngineCollector

disable_created_metrics()  # type: ignore[no-untyped-call]  # creation times of counters, which nothing reads

Outcome = Literal["stop", "length", "abort", "timeout", "error"]

# fmt: off
_FIRST_TOKEN = (.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560)
_FIRST_TOKEN_THRESHOLDS = (1.5, 2)
_BETWEEN_TOKENS = (.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_LATENCY = (.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_STEP = (.001, .0025, .005, .01, .02, .03, .04, .06, .08, .1, .15, .25, .5, 1, 2.5, 5, 10, 30)
# fmt: on
_TOKENS = tuple(float(n * 10**power) for power in range(7) for n in (1, 2, 5))
_OUTCOMES: dict[str, str] = {outcome: outcome for outcome in get_args(Outcome)}
_REJECTIONS: dict[str, str] = {reason: reason for reason in get_args(Rejection)}
_VLLM_REJECTIONS: dict[str, str] = {
    "queued_requests": "max_num_queued_reqs",
    "queued_tokens": "max_num_queued_tokens",
}
_VLLM_OUTCOMES: dict[str, str] = {o: "abort" if o == "timeout" else o for o in get_args(Outcome)}


Names = Sequence[tuple[str, dict[str, str]]]
"""All names under which one measurement is exported, each with its labels."""


class AliasedHistogram(Collector):
    """A histogram that is exported under several names. To make `observe` cheap, a scrape computes the buckets."""

    def __init__(self, text: str, names: Names, bounds: Sequence[Sequence[float]]) -> None:
        """Create the histogram. `bounds` are the upper bounds of the buckets under each name."""
        self._text, self._names, self._shown = text, names, bounds
        self._bounds = sorted({bound for each in bounds for bound in each})
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Record `value`, in the unit of the histogram's name."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def collect(self) -> Iterator[Metric]:
        """Yield a metric family for each name."""
        upto = dict(zip([*self._bounds, inf], accumulate(self._counts.copy()), strict=True))
        for (name, labels), bounds in zip(self._names, self._shown, strict=True):
            family = HistogramMetricFamily(name, self._text, labels=list(labels))
            buckets = [(_written(bound), upto[bound]) for bound in (*bounds, inf)]
            family.add_metric(list(labels.values()), buckets, self._sum)
            yield family


def _written(bound: float) -> str:
    """Format a bound as Prometheus does."""
    return str(floatToGoString(bound))  # type: ignore[no-untyped-call]


class AliasedCounter(Collector):
    """A counter that is exported under several names."""

    def __init__(self, text: str, names: Names) -> None:
        self._text, self._names = text, names
        self.total = 0

    def add(self, amount: int) -> None:
        """Add `amount` to the count."""
        self.total += amount

    def collect(self) -> Iterator[Metric]:
        """Yield a metric family for each name."""
        for name, labels in self._names:
            family = CounterMetricFamily(name, self._text, labels=list(labels))
            family.add_metric(list(labels.values()), self.total)
            yield family


class AliasedCounterByLabel:
    """A counter by a label, exported under several names. All series exist at 0 from the start, as rates need that."""

    def __init__(self) -> None:
        self._by_value: list[dict[str, Counter]] = []

    def add_labelled(self, counters: dict[str, Counter]) -> None:
        """Export the count under another name: `counters` has the counter for each label value, or for some."""
        self._by_value.append(counters)

    def add(self, value: str) -> None:
        """Add 1 to the count of the label value `value`."""
        for counters in self._by_value:
            if value in counters:
                counters[value].inc()


class Metrics:
    """All metrics that /metrics exports."""

    def __init__(
        self,
        model_name: str,
        state: Callable[[], EngineState],
        waiting: Callable[[], int],
        *,
        vllm_names: bool = True,
    ) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)  # among its metrics is the start time, which shows restarts
        self.num_rejected = 0
        """The number of requests that were rejected for load or for a limit; requests with an error do not count."""
        self._model_name = model_name
        self._vllm = vllm_names
        self._registry.register(EngineCollector(model_name, state, waiting, vllm_names))
        self.prompt_tokens = self._count("octavo_prompt_tokens", "vllm:prompt_tokens", "Prompt tokens read")
        self.generated_tokens = self._count("octavo_generation_tokens", "vllm:generation_tokens", "Tokens generated")
        self._outcomes = self._count_by("octavo_requests", "outcome", _OUTCOMES, "Sequences that have ended")
        self._label_alias(self._outcomes, "vllm:request_success", "finished_reason", _VLLM_OUTCOMES)
        self._rejections = self._count_by("octavo_requests_rejected", "reason", _REJECTIONS, "Requests rejected")
        self._label_alias(self._rejections, "vllm:admission_rejections", "reason", _VLLM_REJECTIONS)
        self._add_latencies()
        self._add_lengths()

    def _add_latencies(self) -> None:
        self.first_token = self._histogram(
            "octavo_time_to_first_token_seconds",
            ("vllm:time_to_first_token_seconds",),
            "Arrival to first token",
            _FIRST_TOKEN,
            _FIRST_TOKEN_THRESHOLDS,
        )
        self.between_tokens = self._histogram(
            "octavo_inter_token_latency_seconds",
            ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
            "Time between tokens",
            _BETWEEN_TOKENS,
        )
        self.duration = self._histogram(
            "octavo_request_duration_seconds", ("vllm:e2e_request_latency_seconds",), "Arrival to end", _LATENCY
        )
        self.queue = self._histogram(
            "octavo_request_queue_seconds", ("vllm:request_queue_time_seconds",), "Wait for the first step", _LATENCY
        )
        self._step = self._histogram("octavo_step_seconds", (), "Duration of a step", _STEP)
        self.inference = self._histogram("", ("vllm:request_inference_time_seconds",), "First step to end", _LATENCY)
        self.prefill = self._histogram(
            "", ("vllm:request_prefill_time_seconds",), "First step to first token", _LATENCY
        )
        self.decode = self._histogram("", ("vllm:request_decode_time_seconds",), "First token to end", _LATENCY)
        self.per_token = self._histogram(
            "", ("vllm:request_time_per_output_token_seconds",), "Mean time between tokens", _BETWEEN_TOKENS
        )

    def _add_lengths(self) -> None:
        self.prompt_length = self._histogram("", ("vllm:request_prompt_tokens",), "Tokens of a prompt", _TOKENS)
        self.answer_length = self._histogram("", ("vllm:request_generation_tokens",), "Tokens of an answer", _TOKENS)
        self.longest_choice = self._histogram(
            "", ("vllm:request_max_num_generation_tokens",), "Tokens of the longest of a request's choices", _TOKENS
        )
        self.max_tokens = self._histogram("", ("vllm:request_params_max_tokens",), "max_tokens asked for", _TOKENS)
        self.choices = self._histogram("", ("vllm:request_params_n",), "n asked for", (1, 2, 5, 10, 20))

    def reject(self, reason: Rejection) -> None:
        """Count a request that was rejected before it was accepted."""
        self._rejections.add(reason)
        self.num_rejected += reason not in CLIENT_ERRORS

    def finish(self, outcome: Outcome) -> None:
        """Count the end of an accepted sequence."""
        self._outcomes.add(outcome)

    def on_step(self, outputs: Outputs) -> None:
        """Record the durations of the steps that the engine reports."""
        for seconds in outputs.stats.step_seconds:
            self._step.observe(seconds)

    def render(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def _names(self, name: str, aliases: tuple[str, ...]) -> list[tuple[str, dict[str, str]]]:
        own = [(name, {"model_name": self._model_name})] if name else []
        both = {"model_name": self._model_name, "engine": "0"}
        return own + [(alias, both) for alias in aliases if self._vllm]

    def _histogram(
        self, name: str, aliases: tuple[str, ...], text: str, buckets: tuple[float, ...], more: tuple[float, ...] = ()
    ) -> AliasedHistogram:
        """Create a histogram. `more` are bounds that only `name` has, in addition to `buckets`."""
        names = self._names(name, aliases)
        own = sorted((*buckets, *more))
        histogram = AliasedHistogram(text, names, [own if each == name else buckets for each, _ in names])
        self._registry.register(histogram)
        return histogram

    def _count(self, name: str, alias: str, text: str) -> AliasedCounter:
        counter = AliasedCounter(text, self._names(name, (alias,)))
        self._registry.register(counter)
        return counter

    def _count_by(self, name: str, label: str, values: Mapping[str, str], text: str) -> AliasedCounterByLabel:
        counter = AliasedCounterByLabel()
        counter.add_labelled(self._labelled(name, label, values, text, {"model_name": self._model_name}))
        return counter

    def _label_alias(self, counter: AliasedCounterByLabel, name: str, label: str, values: Mapping[str, str]) -> None:
        if self._vllm:
            labels = {"model_name": self._model_name, "engine": "0"}
            counter.add_labelled(self._labelled(name, label, values, "As vLLM counts it", labels))

    def _labelled(
        self, name: str, label: str, values: Mapping[str, str], text: str, labels: Mapping[str, str]
    ) -> dict[str, Counter]:
        counter = Counter(name, text, [*labels, label], registry=self._registry)
        return {ours: counter.labels(**labels, **{label: theirs}) for ours, theirs in values.items()}
