"""Measures the operator with a thousand LLMServices: creating all their children, idling, and reconciling changes.

A real control plane (tests/cluster) has one node. The operator is a pod on it, installed by the chart; the pods of the
services fit on no node, so that no engine runs. All processes share this machine's cores. The existing objects are read
from the API server, the operator's work from its /metrics.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import psutil
from prometheus_client.parser import text_string_to_metric_families

from bench.operator_scale_report import page, plot
from bench.patient_client import PatientClient
from bench.report import save
from tests.cluster.client import Client
from tests.cluster.cluster import running_cluster
from tests.cluster.layout import HOME
from tests.cluster.octavo import OPERATOR, installed_operator

NAMESPACE = "scale"
LLMSERVICES = f"/apis/octavo.dev/v1alpha1/namespaces/{NAMESPACE}/llmservices"
CHILDREN = {
    "deployments": f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments",
    "services": f"/api/v1/namespaces/{NAMESPACE}/services",
    "poddisruptionbudgets": f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets",
}
METADATA = {"Accept": "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"}
CLIENTS = 8
FIRST_PORT = 10_000
_CHANGED = 5  # LLMServices that are changed while the others are being created
_PAUSE = 2.0  # between two readings of the metrics or of all statuses, which take the measured programs some work
_LOOK = 1.0  # between two counts of the children: at 0.2 s they took a thirtieth of the machine


@dataclass(frozen=True)
class Plan:
    """The parameters of the measurement. `quiet_seconds`: after so long without a write the operator counts as idle.

    `gated`: scheduling gates hold the pods, which is never reported as stalled, instead of a lack of nodes, which is
    after a minute.
    """

    services: int = 1000
    idle_seconds: float = 600
    changes: int = 300
    replicas: int = 1
    quiet_seconds: float = 15
    gated: bool = False


@dataclass(frozen=True)
class Sample:
    """One reading of all figures, `seconds` after the first apply."""

    seconds: float
    children: int
    queue: float
    rss_mib: float
    cpu_seconds: float
    writes: float
    passes: float


@dataclass
class Measured:
    """All results; times in seconds."""

    all_children: float = math.nan
    all_reported: float = math.nan
    """Until the status of each LLMService reports that its pod finds no node."""
    changes_in_burst: list[float] = field(default_factory=list)
    """From the change of one LLMService to that of its Service, while the others are being created."""
    changes_after: list[float] = field(default_factory=list)
    """The same when nothing else happens."""
    idle_seconds: float = 0
    idle_writes: float = math.nan
    """Writing requests that the operator sent during the idle time."""
    idle_changed_objects: int = 0
    """LLMServices and children whose resourceVersion changed during the idle time."""
    idle_cpu_percent: float = math.nan
    takeover_seconds: float = math.nan
    """From the moment that a new operator leads until it has reconciled every LLMService."""
    takeover_writes: float = math.nan
    """Writing requests that the new operator sent meanwhile."""
    takeover_rss_mib: float = 0
    """The most resident memory of the new operator meanwhile: it lists everything at its start."""
    repeated_requests: int = 0
    """Requests of the bench that the API server was too busy to answer, each sent again after a second."""
    load_before: float = 0
    """The machine's load before the first apply: what else runs takes the cores from all of this."""
    samples: list[Sample] = field(default_factory=list)


class Operator:
    """Reads the leading pod's own metrics through the API server."""

    def __init__(self, system: Client, http: PatientClient) -> None:
        self._http = http
        pods = system.list("pods", selector="app.kubernetes.io/name=octavo-operator")
        pod = max(pods, key=lambda each: str(each["metadata"]["creationTimestamp"]))
        self._path = f"/api/v1/namespaces/{system.namespace}/pods/{pod['metadata']['name']}:8080/proxy/metrics"

    def metrics(self) -> dict[str, float]:
        """Return each metric's sum over its labels."""
        text = self._http.get(self._path).text
        found: dict[str, float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found[sample.name] = found.get(sample.name, 0.0) + sample.value
        return found


class Fleet:
    """The LLMServices of the bench and their children, as read from the API server."""

    def __init__(self, http: PatientClient, size: int, gated: bool) -> None:
        self._http = http
        self.size = size
        self._spec = GATED if gated else NO_NODE
        self._reason = "SchedulingGated" if gated else "Unschedulable"

    def make(self) -> None:
        """Create all LLMServices, several at the same time."""
        with ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(self._create, range(self.size)))

    def _create(self, number: int) -> None:
        self._http.create(LLMSERVICES, llmservice(number, self._spec))

    def children(self) -> int:
        """Return the number of children of all kinds."""
        return sum(self._count(path) for path in CHILDREN.values())

    def _count(self, path: str) -> int:
        listed = self._http.get(path, params={"limit": 1}).json()
        return len(listed["items"]) + int(listed["metadata"].get("remainingItemCount", 0))

    def all_reported(self) -> bool:
        """Return True if the status of every LLMService reports why its pod has no node."""
        items = self._http.get(LLMSERVICES).json()["items"]
        return len(items) == self.size and all(
            _condition(item, "Ready").get("reason") == self._reason for item in items
        )

    def stalled(self) -> bool:
        """Return True if every LLMService is reported as stalled: the last change, which comes by time alone."""
        items = self._http.get(LLMSERVICES).json()["items"]
        return all(_condition(item, "Stalled").get("status") == "True" for item in items)

    def all_observed(self) -> bool:
        """Return True if the status of each child that has one is that of its present generation."""
        paths = (CHILDREN["deployments"], CHILDREN["poddisruptionbudgets"])
        items = [item for path in paths for item in self._http.get(path).json()["items"]]
        return all(item["status"].get("observedGeneration") == item["metadata"]["generation"] for item in items)

    def versions(self) -> dict[str, str]:
        """Return the resourceVersion of every LLMService and child, by uid."""
        found = {}
        for path in (LLMSERVICES, *CHILDREN.values()):
            items = self._http.get(path, headers=METADATA).json()["items"]
            found.update({item["metadata"]["uid"]: item["metadata"]["resourceVersion"] for item in items})
        return found

    def change(self, number: int, port: int) -> float:
        """Change the port of one LLMService; returns the seconds until its Service has the new port."""
        began = time.perf_counter()
        self._http.merge(f"{LLMSERVICES}/{name(number)}", {"spec": {"service": {"port": port}}})
        while self.port(number) != port:
            time.sleep(0.01)
        return time.perf_counter() - began

    def port(self, number: int) -> int | None:
        """Return the port of an LLMService's Service, None while there is no Service."""
        answer = self._http.get(f"{CHILDREN['services']}/{name(number)}")
        return None if answer.status_code == 404 else int(answer.json()["spec"]["ports"][0]["port"])


def name(number: int) -> str:
    """Return the name of the LLMService of this number."""
    return f"model-{number:04d}"


NO_NODE: dict[str, Any] = {"scheduling": {"nodeSelector": {"no-such": "node"}}}
GATED: dict[str, Any] = {"podTemplate": {"spec": {"schedulingGates": [{"name": "example.com/never"}]}}}


def llmservice(number: int, held: dict[str, Any]) -> dict[str, Any]:
    """Return an LLMService whose pod does not start because of `held`, a part of its spec."""
    spec = {"model": {"source": {"demo": "smollm2"}}, "accelerator": {"count": 0}, **held}
    return {
        "apiVersion": "octavo.dev/v1alpha1",
        "kind": "LLMService",
        "metadata": {"name": name(number), "namespace": NAMESPACE},
        "spec": spec,
    }


def _condition(service: dict[str, Any], kind: str) -> dict[str, Any]:
    conditions = service.get("status", {}).get("conditions", [])
    return next((found for found in conditions if found["type"] == kind), {})


def measure(cluster: Client, system: Client, plan: Plan, say: Callable[[str], None]) -> Measured:
    """Run the whole measurement in a namespace of its own."""
    cluster.kubectl("create", "namespace", NAMESPACE)
    http = PatientClient(cluster.http)
    operator, fleet = Operator(system, http), Fleet(http, plan.services, plan.gated)
    measured = Measured(load_before=round(os.getloadavg()[0], 1))
    began = time.perf_counter()
    with _sampling(operator, fleet, measured, began):
        _burst(fleet, measured, began, say)
        if not plan.gated:
            say("waits until all are reported as stalled")
            while not fleet.stalled():
                time.sleep(1)
        _wait_until_quiet(operator, fleet, plan.quiet_seconds)
        _idle(operator, fleet, measured, plan.idle_seconds, say)
        say(f"{plan.changes} changes, one after the other")
        for number in range(plan.changes):
            measured.changes_after.append(fleet.change(number % plan.services, FIRST_PORT + 5000 + number))
    _wait_until_quiet(operator, fleet, plan.quiet_seconds)
    _take_over(system, http, plan.services, measured, say)
    measured.repeated_requests = http.repeated
    return measured


def _take_over(
    system: Client, http: PatientClient, services: int, measured: Measured, say: Callable[[str], None]
) -> None:
    """Replace the operator's pods, and follow the new leader's first reconcile of all LLMServices."""
    say("replaces the operator")
    system.kubectl("rollout", "restart", f"deployment/{OPERATOR}")
    system.kubectl("rollout", "status", f"deployment/{OPERATOR}", "--timeout=280s")
    operator, leads = Operator(system, http), 0.0
    while True:
        found, now = operator.metrics(), time.perf_counter()
        resident = found["process_resident_memory_bytes"] / 2**20
        measured.takeover_rss_mib = round(max(measured.takeover_rss_mib, resident), 1)
        leads = leads or (now if found["octavo_operator_leader"] else 0.0)
        done = found["octavo_operator_reconciles_total"] >= services and not found["octavo_operator_queue_depth"]
        if leads and done:
            break
        time.sleep(_PAUSE)
    measured.takeover_seconds, measured.takeover_writes = now - leads, found.get("octavo_operator_writes_total", 0.0)
    say(f"the new one has seen all after {measured.takeover_seconds:.1f} s, with {measured.takeover_writes:.0f} writes")


def _burst(fleet: Fleet, measured: Measured, began: float, say: Callable[[str], None]) -> None:
    say(f"applies {fleet.size} LLMServices")
    made, stop = threading.Thread(target=fleet.make), threading.Event()
    changing = threading.Thread(target=_change_while, args=(fleet, measured, stop))
    made.start()
    changing.start()
    while fleet.children() < fleet.size * len(CHILDREN):
        time.sleep(_LOOK)
    measured.all_children = time.perf_counter() - began
    made.join()
    stop.set()
    changing.join()
    say(f"all children are there after {measured.all_children:.1f} s")
    while not fleet.all_reported():
        time.sleep(_PAUSE)
    measured.all_reported = time.perf_counter() - began
    say(f"all statuses report that the pods find no node after {measured.all_reported:.1f} s")


def _change_while(fleet: Fleet, measured: Measured, stop: threading.Event) -> None:
    """Change one of the first LLMServices every second, once all of them have been reconciled."""
    while not all(fleet.port(number) for number in range(_CHANGED)) and not stop.is_set():
        time.sleep(0.2)
    count = 0
    while not stop.wait(1):
        measured.changes_in_burst.append(fleet.change(count % _CHANGED, FIRST_PORT + count))
        count += 1


def _wait_until_quiet(operator: Operator, fleet: Fleet, seconds: float) -> None:
    """Wait until the operator has written nothing for a while, and the children's controllers are not behind.

    A controller that stood still meanwhile would change objects later, and the operator their LLMServices' status.
    """
    writes, since = math.nan, time.monotonic()
    while time.monotonic() - since < seconds or not fleet.all_observed():
        before, writes = writes, operator.metrics()["octavo_operator_writes_total"]
        if writes != before:
            since = time.monotonic()
        time.sleep(1)


def _idle(operator: Operator, fleet: Fleet, measured: Measured, seconds: float, say: Callable[[str], None]) -> None:
    say(f"idle for {seconds:.0f} s")
    before, versions, began = operator.metrics(), fleet.versions(), time.perf_counter()
    time.sleep(seconds)
    after, later = operator.metrics(), fleet.versions()
    measured.idle_seconds = time.perf_counter() - began
    measured.idle_writes = after["octavo_operator_writes_total"] - before["octavo_operator_writes_total"]
    measured.idle_changed_objects = len(set(later.items()) - set(versions.items()))
    cpu = after["process_cpu_seconds_total"] - before["process_cpu_seconds_total"]
    measured.idle_cpu_percent = 100 * cpu / measured.idle_seconds
    say(f"{measured.idle_writes:.0f} writes, {measured.idle_cpu_percent:.1f} % of a core")


@contextmanager
def _sampling(operator: Operator, fleet: Fleet, measured: Measured, began: float) -> Iterator[None]:
    """Take a sample every ten seconds until the end of the block: a page of metrics takes the operator some work."""
    stop = threading.Event()

    def look() -> None:
        while not stop.wait(10):
            found = operator.metrics()
            measured.samples.append(
                Sample(
                    seconds=round(time.perf_counter() - began, 1),
                    children=fleet.children(),
                    queue=found["octavo_operator_queue_depth"],
                    rss_mib=round(found["process_resident_memory_bytes"] / 2**20, 1),
                    cpu_seconds=round(found["process_cpu_seconds_total"], 1),
                    writes=found["octavo_operator_writes_total"],
                    passes=found["octavo_operator_reconciles_total"],
                )
            )

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def main() -> int:
    """Entry point of `python -m bench.operator_scale`."""
    parser = argparse.ArgumentParser(prog="python -m bench.operator_scale", description=__doc__)
    for fact, value in asdict(Plan()).items():
        flag = f"--{fact.replace('_', '-')}"
        kind: dict[str, Any] = {"type": type(value)}
        if isinstance(value, bool):
            kind = {"action": argparse.BooleanOptionalAction}
        parser.add_argument(flag, default=value, help="default: %(default)s", **kind)
    plan = Plan(**vars(parser.parse_args()))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))

    def say(line: str) -> None:
        print(f"{time.strftime('%X')} {line}", file=sys.stderr, flush=True)

    with running_cluster(HOME / "scale", say) as cluster:
        client = Client(cluster.kubeconfig, programs=HOME / "bin", scratch=HOME / "scale" / "scratch")
        with installed_operator(client, "--set", f"operator.replicas={plan.replicas}") as system:
            say(f"{OPERATOR} runs")
            measured = measure(client, system, plan, say)
    result = {
        "machine": {"cores": psutil.cpu_count(), "cpu": platform.processor() or platform.machine()},
        "plan": asdict(plan),
        **asdict(measured),
    }
    stem = save("operator-scale", result, lambda title: page(title, result))
    plot(result, stem.with_suffix(".png"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
