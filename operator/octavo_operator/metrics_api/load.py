"""The load of an engine, read from its /metrics."""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from octavo_operator.api.names import WAITING_METRIC

_RUNNING_METRIC = "octavo_requests_running"
_MOST_REQUESTS = 1e12
"""The most requests that a pod can be believed to have. What answers is not trusted: sums of larger numbers would
exceed a float's range, and the arithmetic of scaling would fail for all LLMServices."""


@dataclass(frozen=True)
class Load:
    """Requests that wait and that are computed, of one pod or of many."""

    waiting: int
    running: int

    @property
    def in_flight(self) -> int:
        """All that were accepted and not yet answered."""
        return self.waiting + self.running

    def __add__(self, other: Load) -> Load:
        return Load(self.waiting + other.waiting, self.running + other.running)


class NoMetricsError(ValueError):
    """The text is no metrics of an engine; the message says why."""


def parse(text: str) -> Load:
    """Return the load in `text`, in Prometheus' text format, summed over all models.

    NoMetricsError if there is none.
    """
    wanted = (WAITING_METRIC, _RUNNING_METRIC)
    lines = [line for line in text.splitlines() if line.startswith(wanted)]
    sums: dict[str, float] = {}
    try:
        for family in text_string_to_metric_families("\n".join(lines) + "\n"):
            for sample in family.samples:
                sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    except (ValueError, LookupError) as error:  # the parser looks for the end of a label beyond that of the line
        raise NoMetricsError(f"its /metrics cannot be read: {error}") from None
    missing = [name for name in wanted if name not in sums]
    if missing:
        raise NoMetricsError(f"its /metrics has no {' and no '.join(missing)}")
    if not all(0 <= value <= _MOST_REQUESTS for value in sums.values()):  # False for NaN
        raise NoMetricsError("its /metrics has impossible numbers of requests")
    return Load(round(sums[WAITING_METRIC]), round(sums[_RUNNING_METRIC]))
