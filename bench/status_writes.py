"""Counts how often the operator writes the status of LLMServices that are busy and scale by their load.

A real control plane (tests/cluster) whose autoscalers look every 15 s, as they do by Kubernetes' defaults. The operator
is a pod, installed by the chart. In the place of engines run small servers, which are ready at once and whose /metrics
report queues and running requests that change all the time; nothing is computed. Half of the services scale by the
operator's defaults, the other half give replicas up within seconds, so that their replicas change again and again.
A watch sees every write of a status, and what was changed by it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import httpx2
import psutil

from bench.operator_scale import Operator
from bench.patient_client import PatientClient
from bench.report import save
from tests.cluster.api import connect_with
from tests.cluster.client import Client
from tests.cluster.cluster import running_cluster
from tests.cluster.layout import HOME
from tests.cluster.octavo import installed_operator, wait_for_condition
from tests.cluster.programs import CONTROLLER_MANAGER
from tests.cluster.test_unhappy_cluster import BY_TCP
from tests.operator.bad_llmservices import VALID, merged

NAMESPACE = "busy"
LLMSERVICES = f"/apis/octavo.dev/v1alpha1/namespaces/{NAMESPACE}/llmservices"
AUTOSCALER = {
    "horizontal-pod-autoscaler-sync-period": "15s",
    "horizontal-pod-autoscaler-initial-readiness-delay": "30s",
    "horizontal-pod-autoscaler-downscale-stabilization": "300s",
}
"""Kubernetes' defaults: the tests' cluster looks more often."""
PATIENT = {**BY_TCP, "failureThreshold": 60}
"""All servers start at the same time: a probe must not kill them for that."""
SEATS = 8
ENGINE = f"""
import http.server, math, random, time
period, phase = random.uniform(60, 240), random.random()
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        wave = (1 + math.sin(2 * math.pi * (time.time() / period + phase))) / 2
        running = round({SEATS} * wave * random.uniform(0.7, 1))
        waiting = round(12 * wave ** 2 * random.random())
        text = "octavo_requests_waiting %d\\noctavo_requests_running %d\\n" % (waiting, running)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode() if self.path == "/metrics" else b"{{}}")
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer(("", 8000), Handler).serve_forever()
"""
HASTY = {
    "scaleDown": {"stabilizationWindowSeconds": 15, "policies": [{"type": "Pods", "value": 4, "periodSeconds": 15}]}
}
GROUPS: Mapping[str, dict[str, Any]] = {"defaults": {}, "hasty": {"behavior": HASTY}}


@dataclass(frozen=True)
class Plan:
    """The parameters. `settle_seconds`: from the moment that all are ready until the counting begins.

    `direct`: the operator scales by itself, without the aggregated metrics API.
    """

    services: int = 16
    seconds: float = 600
    settle_seconds: float = 60
    direct: bool = False


@dataclass
class Counted:
    """Writes of the statuses of one group of services, in `seconds`. `changes`: what the writes changed, with how many
    did; one write may change several things. `scaled`: changes of a Deployment's replicas that the statuses reported.
    """

    seconds: float = 0
    writes: dict[str, int] = field(default_factory=dict)
    changes: dict[str, int] = field(default_factory=dict)
    scaled: int = 0

    def rates(self) -> list[float]:
        """Return each service's writes a second."""
        return [count / self.seconds for count in self.writes.values()]


class Watch:
    """Follows all LLMServices of the namespace, and counts the writes of each status."""

    def __init__(self, groups: Mapping[str, list[str]]) -> None:
        self.counted = {name: Counted(writes=dict.fromkeys(names, 0)) for name, names in groups.items()}
        self._group = {name: group for group, names in groups.items() for name in names}
        self._known: dict[str, dict[str, Any]] = {}

    def note(self, service: dict[str, Any]) -> None:
        """Count the difference from the last version of this LLMService."""
        name, status = service["metadata"]["name"], service.get("status") or {}
        before, self._known[name] = self._known.get(name), status
        if before is None or before == status:
            return
        counted = self.counted[self._group[name]]
        counted.writes[name] += 1
        for what in changes(before, status):
            counted.changes[what] = counted.changes.get(what, 0) + 1
        counted.scaled += before.get("desiredReplicas") != status.get("desiredReplicas")


def changes(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    """Return the names of what differs between two statuses: fields, two levels deep, and types of conditions."""
    found = set()
    for name in before.keys() | after.keys():
        one, other = before.get(name), after.get(name)
        if one == other:
            continue
        if name == "conditions":
            one, other = ({each["type"]: each for each in conditions or ()} for conditions in (one, other))
        if isinstance(one, dict) and isinstance(other, dict):
            found |= {f"{name}.{key}" for key in one.keys() | other.keys() if one.get(key) != other.get(key)}
        else:
            found.add(name)
    return found


@contextlib.contextmanager
def watched(client: Client, watch: Watch) -> Iterator[None]:
    """Follow until the end of the block."""
    ended = threading.Event()
    with connect_with(client.kubeconfig) as http:
        listed = http.get(LLMSERVICES).json()
        for item in listed["items"]:
            watch.note(item)
        query = {"watch": "1", "resourceVersion": listed["metadata"]["resourceVersion"]}
        thread = threading.Thread(target=_follow, args=[http, query, watch, ended])
        thread.start()
        try:
            yield
        finally:
            ended.set()
    thread.join()


def _follow(http: httpx2.Client, query: dict[str, str], watch: Watch, ended: threading.Event) -> None:
    while not ended.is_set():
        with (
            contextlib.suppress(httpx2.HTTPError, RuntimeError),
            http.stream("GET", LLMSERVICES, params=query, timeout=30) as response,
        ):
            for line in response.iter_lines():
                body = json.loads(line)["object"]
                query["resourceVersion"] = body["metadata"]["resourceVersion"]
                if not ended.is_set():
                    watch.note(body)


def llmservice(name: str, autoscaling: dict[str, Any]) -> dict[str, Any]:
    """Return an LLMService with the small server in the place of its engine."""
    container = {
        "name": "engine",
        "command": ["python3", "-c", ENGINE],
        "args": [],
        **dict.fromkeys(("startupProbe", "readinessProbe", "livenessProbe"), PATIENT),
    }
    spec = {
        "engine": {"image": "octavo-engine:dev", "imagePullPolicy": "Never", "maxConcurrentRequests": SEATS},
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
        "autoscaling": {"maxReplicas": 3, "targetQueueDepth": 4, **autoscaling},
        "podTemplate": {"spec": {"terminationGracePeriodSeconds": 11, "containers": [container]}},
    }
    return merged(VALID, {"metadata": {"name": name}, "spec": spec})


def measure(cluster: Client, system: Client, plan: Plan, say: Callable[[str], None]) -> dict[str, Any]:
    """Run the measurement in a namespace of its own; return its figures."""
    cluster.kubectl("create", "namespace", NAMESPACE)
    client, load = cluster.in_namespace(NAMESPACE), os.getloadavg()[0]
    groups: dict[str, list[str]] = {group: [] for group in GROUPS}
    for number in range(plan.services):
        group = list(GROUPS)[number % len(GROUPS)]
        groups[group].append(f"{group}-{number:02d}")
    client.apply(*(llmservice(name, GROUPS[group]) for group, names in groups.items() for name in names))
    for name in (each for names in groups.values() for each in names):
        wait_for_condition(client, name, "ScalingActive", "ValidMetricFound", 300)
    say(f"{plan.services} LLMServices scale by their load; counts after {plan.settle_seconds:.0f} s")
    time.sleep(plan.settle_seconds)
    operator, watch = Operator(system, PatientClient(cluster.http)), Watch(groups)
    with watched(client, watch):
        before, began = operator.metrics(), time.monotonic()
        time.sleep(plan.seconds)
        after, seconds = operator.metrics(), time.monotonic() - began
    for each in watch.counted.values():
        each.seconds = seconds
    cpu = after["process_cpu_seconds_total"] - before["process_cpu_seconds_total"]
    writes = after["octavo_operator_writes_total"] - before["octavo_operator_writes_total"]
    return {
        "load_before": round(load, 1),
        "seconds": seconds,
        "operator_writes": writes,
        "operator_cpu_percent": 100 * cpu / seconds,
        "operator_restarted": after["process_start_time_seconds"] != before["process_start_time_seconds"],
        "groups": {name: asdict(each) | {"rates": each.rates()} for name, each in watch.counted.items()},
    }


def page(title: str, result: dict[str, Any]) -> str:
    """Return the figures as Markdown."""
    plan = result["plan"]
    scaled = "The operator scales by itself" if plan["direct"] else "HorizontalPodAutoscalers scale, every 15 s"
    lines = [
        f"# {title}\n",
        f"{plan['services']} LLMServices on a real control plane, each with up to 3 small servers in the place of "
        "engines, which report queues and running requests that change all the time (no model computes). "
        f"{scaled}. Writes of statuses, as a watch saw them in {result['seconds']:.0f} s, on "
        f"{result['machine']['cores']} cores; load before: {result['load_before']}. The aim is at most 0.1 a second.\n",
        "| services | writes a second of one: mean | most | changes of the wanted replicas of all |",
        "| --- | --- | --- | --- |",
    ]
    for name, group in result["groups"].items():
        mean = sum(group["rates"]) / len(group["rates"])
        lines.append(f"| {len(group['rates'])} {name} | {mean:.3f} | {max(group['rates']):.3f} | {group['scaled']} |")
    lines += ["\n`hasty`: `behavior.scaleDown` gives replicas up after 15 s.\n", f"{_of_operator(result)}\n"]
    total: Counter[str] = Counter()
    for group in result["groups"].values():
        total.update(group["changes"])
    lines += ["| changed by a write | times |", "| --- | --- |"]
    lines += [f"| {what} | {times} |" for what, times in total.most_common()]
    flag = " --direct" if plan["direct"] else ""
    lines.append(f"\n`python -m bench.status_writes{flag}` measures it again.\n")
    return "\n".join(lines)


def _of_operator(result: dict[str, Any]) -> str:
    if result["operator_restarted"]:
        return "The operator ended and was started again meanwhile, as where others take all of the CPU."
    writes, cpu = result["operator_writes"], result["operator_cpu_percent"]
    return f"All writes of the operator in this time: {writes:.0f}; its CPU: {cpu:.1f} % of a core."


def main() -> int:
    """Entry point of `python -m bench.status_writes`."""
    parser = argparse.ArgumentParser(prog="python -m bench.status_writes", description=__doc__)
    defaults = Plan()
    parser.add_argument("--services", type=int, default=defaults.services, help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=defaults.seconds, help="default: %(default)s")
    parser.add_argument("--settle-seconds", type=float, default=defaults.settle_seconds, help="default: %(default)s")
    parser.add_argument("--direct", action="store_true", help="the operator scales, without HorizontalPodAutoscalers")
    plan = Plan(**vars(parser.parse_args()))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))

    def say(line: str) -> None:
        print(f"{time.strftime('%X')} {line}", file=sys.stderr, flush=True)

    CONTROLLER_MANAGER.update(AUTOSCALER)
    settings = ("--set", f"autoscaling.direct={str(plan.direct).lower()}")
    with running_cluster(HOME / "status-writes", say) as cluster:
        scratch = HOME / "status-writes" / "scratch"
        client = Client(cluster.kubeconfig, programs=HOME / "bin", scratch=scratch)
        with installed_operator(client, *settings) as system:
            figures = measure(client, system, plan, say)
    result = {"machine": {"cores": psutil.cpu_count()}, "plan": asdict(plan), **figures}
    save("status-writes-direct" if plan.direct else "status-writes", result, lambda title: page(title, result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
