"""Each LLMService's conditions as metrics, so that an alert needs no engine that answers: read at each scrape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from octavo_operator.api.status import from_status
from octavo_operator.reconcile.kinds import LLMSERVICE, OPTIONAL
from octavo_operator.reconcile.observation.observe import Index
from octavo_operator.render.podmonitor import KIND as POD_MONITOR
from octavo_operator.render.servicemonitor import KIND as SERVICE_MONITOR

_STATUSES = ("True", "False", "Unknown")
_MONITORS = tuple(kind.plural for kind in OPTIONAL if kind.name in (SERVICE_MONITOR, POD_MONITOR))


class ServiceCollector(Collector):
    """The metrics of all LLMServices in the indexes of the watches; nothing before `read_from` was called."""

    def __init__(self) -> None:
        self._indexes: Mapping[str, Index] = {}

    def read_from(self, indexes: Mapping[str, Index]) -> None:
        """Show the content of these indexes from now on."""
        self._indexes = indexes

    def collect(self) -> Iterator[Metric]:
        condition, desired, monitored = _families()
        monitors = {key for plural in _MONITORS for key in list(self._indexes.get(plural, {}))}
        for key, service in self._services():
            status = service.get("status") or {}
            for each in status.get("conditions") or ():
                for value in _STATUSES:
                    condition.add_metric([*key, each["type"], value], float(each["status"] == value))
            desired.add_metric(key, float(from_status(status, int, "desiredReplicas") or 0))
            monitored.add_metric(key, float(key in monitors))
        yield from (condition, desired, monitored)

    def _services(self) -> Iterator[tuple[tuple[str, str], Mapping[str, Any]]]:
        index = self._indexes.get(LLMSERVICE.plural, {})
        for key in list(index):  # kopf changes it meanwhile
            for service in index.get(key, ()):
                yield key, service


def _families() -> tuple[GaugeMetricFamily, GaugeMetricFamily, GaugeMetricFamily]:
    names = ["namespace", "name"]
    return (
        GaugeMetricFamily(
            "octavo_llmservice_condition",
            "1 if the condition of this type has this status, else 0.",
            labels=[*names, "type", "status"],
        ),
        GaugeMetricFamily("octavo_llmservice_desired_replicas", "Pods that should be.", labels=names),
        GaugeMetricFamily("octavo_llmservice_monitored", "1 if a monitor of its pods was made, else 0.", labels=names),
    )
