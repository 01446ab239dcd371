"""The operator's own metrics at /metrics, in a registry of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, PlatformCollector, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from octavo_operator.reconcile.api_requests.rights import MissingRights
from octavo_operator.reconcile.health import Heartbeat
from octavo_operator.reconcile.observation.observe import Index, Key
from octavo_operator.reconcile.queue import ExpectedError, WorkQueue
from octavo_operator.reconcile.service_metrics import ServiceMetrics
from octavo_operator.reconcile.watching.watched_namespaces import WatchedNamespaces

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class _NamespaceCollector(Collector):
    """Reports at each scrape which namespaces can be read."""

    def __init__(self, scope: WatchedNamespaces) -> None:
        self._scope = scope

    def collect(self) -> Iterator[Metric]:
        text = "1 if the LLMServices of the namespace (*: of the whole cluster) can be listed and watched, else 0."
        family = GaugeMetricFamily("octavo_operator_namespace_readable", text, labels=["namespace"])
        for namespace, readable in self._scope.by_namespace().items():
            family.add_metric([namespace], float(readable))
        yield family


class _RightsCollector(Collector):
    """The rights that the API server refuses, asked for at each scrape."""

    def __init__(self, rights: MissingRights) -> None:
        self._rights = rights

    def collect(self) -> Iterator[Metric]:
        text = "1 for each right that the API server refused in the last 90 s (namespace *: in the whole cluster)."
        labels = ["verb", "resource", "namespace"]
        family = GaugeMetricFamily("octavo_operator_right_missing", text, labels=labels)
        for right in self._rights.lately():
            family.add_metric([right.verb, right.resource, right.namespace], 1.0)
        yield family


class OperatorMetrics:
    """Counters that the parts of the operator move, and gauges that are read when they are asked for."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        self._reconciles = Counter(
            "octavo_operator_reconciles",
            "Reconciles of an LLMService: done, refused (by the API server, or it was unreachable) or fault (a bug).",
            ["result"],
            registry=self._registry,
        )
        for result in ("done", "refused", "fault"):
            self._reconciles.labels(result)
        self._seconds = Histogram(
            "octavo_operator_reconcile_seconds",
            "Duration of a reconcile.",
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._writes = Counter(
            "octavo_operator_writes",
            "Writes to the API server, by operation and kind.",
            ["verb", "kind"],
            registry=self._registry,
        )
        self._services = ServiceMetrics()
        self._leads = False
        self._leader = Gauge("octavo_operator_leader", "1 on the leading replica.", registry=self._registry)

    def reconciled(self, seconds: float, error: Exception | None) -> None:
        """Count a reconcile that has ended."""
        result = "done" if error is None else "refused" if isinstance(error, ExpectedError) else "fault"
        self._reconciles.labels(result).inc()
        self._seconds.observe(seconds)

    def wrote(self, verb: str, kind: str) -> None:
        """Count a write that is being sent."""
        self._writes.labels(verb, kind).inc()

    def leads(self) -> None:
        """Show the LLMServices from now on, as this replica leads. Followers would show each a second time."""
        self._leader.set(1)
        self._leads = True

    def read_services(self, indexes: Mapping[str, Index]) -> None:
        """Show the LLMServices in these indexes of the watches, once this replica leads."""
        self._services.read_from(indexes)

    def read_from(self, queue: WorkQueue[Key], heartbeat: Heartbeat) -> None:
        """Add the gauges of the queue and of the watches."""
        for name, text, read in (
            ("queue_depth", "LLMServices that wait to be reconciled.", lambda: len(queue)),
            ("queue_oldest_seconds", "How long the oldest of them has waited.", queue.oldest_wait_seconds),
            ("silent_seconds", "Time since the last message from the cluster.", heartbeat.silent_seconds),
        ):
            Gauge(f"octavo_operator_{name}", text, registry=self._registry).set_function(read)

    def read_namespaces(self, scope: WatchedNamespaces) -> None:
        """Add whether each namespace can be read."""
        self._registry.register(_NamespaceCollector(scope))

    def read_rights(self, rights: MissingRights) -> None:
        """Add the rights that the API server refuses."""
        self._registry.register(_RightsCollector(rights))

    def render(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        page = generate_latest(self._registry)
        return page + self._services.render().encode() if self._leads else page
