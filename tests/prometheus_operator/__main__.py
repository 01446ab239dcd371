"""`make monitoring-check`: a real Prometheus under the real Prometheus Operator scrapes the pods of LLMServices.

Both are built from their Go modules and run as pods of a real Kubernetes, the operator by its project's own manifests.
The Prometheus selects what kube-prometheus-stack's selects: objects with its `release` label, in all namespaces. By the
ServiceMonitors it must find a pod that loads, one that serves and one that drains, whether it looks for them in
Endpoints or in EndpointSlices. It must scrape Octavo's operator by the monitor of its chart, and evaluate the alerts of
both LLMServices. What it answers is printed. Exit code: 0 if all of this was seen.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.build import PROMETHEUS, PROMETHEUS_OPERATOR, ensure_built
from tests.cluster.client import Client
from tests.cluster.cluster import running_cluster
from tests.cluster.crds import PROMETHEUS_OPERATOR as CRDS
from tests.cluster.errors import ClusterError
from tests.cluster.images import program_image
from tests.cluster.layout import HOME
from tests.cluster.octavo import installed_operator, sdk, wait_for_condition
from tests.cluster.test_llmservice_monitoring import LABELS, LOADS

SERVES, LOADING = "serves", "loads"
PROMETHEUS_IMAGE = "prometheus:dev"
PATIENCE = 240.0
"""Seconds that each step may take: also the operator's reloader takes over a new configuration within minutes."""
ROLES = {"Endpoints": "__meta_kubernetes_endpoints_name", "EndpointSlice": "__meta_kubernetes_endpointslice_name"}
"""The objects in which the Prometheus Operator can have Prometheus look for pods, with a label that only each gives."""


def main() -> int:
    """Run the check; an exception says what was not seen."""
    ensure_built(_say, (PROMETHEUS_OPERATOR, PROMETHEUS))
    home = HOME / "monitoring"
    with tempfile.TemporaryDirectory() as folder, running_cluster(home, _say, _archives(Path(folder))) as found:
        cluster = Client(found.kubeconfig, programs=HOME / "bin", scratch=home / "scratch")
        _install_prometheus(cluster)
        selected = ",".join(f"monitoring.labels.{name}={value}" for name, value in LABELS.items())
        with installed_operator(cluster, "--set", f"monitoring.enabled=Always,{selected}") as system:
            cluster.apply(*_llmservices())
            wait_for_condition(cluster, SERVES, "Ready", "Serving", PATIENCE)
            for role in ROLES:
                _look_in(cluster, role)
            _wait_for_operators(cluster, system.namespace)
            _show_alerts(cluster)
    return 0


def _archives(folder: Path) -> list[Path]:
    """Write the images of both projects as files, under the names by which the operator's manifests know them."""
    (container,) = _deployment()["spec"]["template"]["spec"]["containers"]
    flag = "--prometheus-config-reloader="
    (reloader,) = [each.removeprefix(flag) for each in container["args"] if each.startswith(flag)]
    programs = {
        container["image"]: PROMETHEUS_OPERATOR.folder / "operator",
        reloader: PROMETHEUS_OPERATOR.folder / "prometheus-config-reloader",
        f"docker.io/library/{PROMETHEUS_IMAGE}": PROMETHEUS.folder / "prometheus",
    }
    files = {folder / f"{program.name}.tar": program_image(name, program) for name, program in programs.items()}
    for file, image in files.items():
        file.write_bytes(image.archive())
    return list(files)


def _manifests() -> Path:
    """Return the folder of the operator's own manifests, in its Go module."""
    return CRDS.paths()[0].parents[1]


def _deployment() -> dict[str, Any]:
    file = _manifests() / "rbac" / "prometheus-operator" / "prometheus-operator-deployment.yaml"
    return dict(yaml.safe_load(file.read_text()))


def _install_prometheus(cluster: Client) -> None:
    """Install the operator and a Prometheus that selects as kube-prometheus-stack's, in the namespace `default`."""
    folder = _manifests()
    cluster.kubectl("apply", "--server-side", "-f", str(folder / "prometheus-operator-crd"))
    cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=180s")
    for file in sorted([*folder.glob("rbac/prometheus-operator/*"), *folder.glob("rbac/prometheus/prometheus-*")]):
        cluster.apply(file)
    selects = {"matchLabels": LABELS}
    spec = {
        "image": PROMETHEUS_IMAGE,
        "serviceAccountName": "prometheus",
        "securityContext": {"runAsNonRoot": True, "runAsUser": 1000, "fsGroup": 2000},
        **{f"{kind}Selector": selects for kind in ("serviceMonitor", "podMonitor", "rule")},
        **{f"{kind}NamespaceSelector": {} for kind in ("serviceMonitor", "podMonitor", "rule")},
    }
    kind = {"apiVersion": "monitoring.coreos.com/v1", "kind": "Prometheus"}
    cluster.apply({**kind, "metadata": {"name": "stack"}, "spec": spec})
    cluster.wait_until(lambda: _answer(cluster, "status/buildinfo"), PATIENCE, cluster.diagnosis, every=1)
    _say(f"Prometheus {PROMETHEUS.version} runs under the Prometheus Operator {PROMETHEUS_OPERATOR.version}")


def _answer(cluster: Client, path: str) -> dict[str, Any]:
    """Return the data of one of Prometheus' API's answers; nothing while it does not run."""
    answer = cluster.http.get(f"{cluster.path('pods', 'prometheus-stack-0')}:9090/proxy/api/v1/{path}")
    return dict(answer.json()["data"]) if answer.is_success else {}


def _llmservices() -> list[dict[str, Any]]:
    """Return one LLMService with a real engine, and one with an engine that loads for ever."""
    engine = {"name": "engine", "image": "octavo-engine:dev", "command": ["python", "-c", LOADS], "args": []}
    loads = {"podTemplate": {"spec": {"containers": [engine]}}}
    common = {
        "model": {"source": {"demo": "smollm2"}},
        "accelerator": {"count": 0},
        "monitoring": {"interval": "5s", "labels": LABELS},
    }
    kind = {"apiVersion": "octavo.dev/v1alpha1", "kind": "LLMService"}
    specs = {SERVES: common, LOADING: {**common, **loads}}
    return [{**kind, "metadata": {"name": name}, "spec": spec} for name, spec in specs.items()]


def _look_in(cluster: Client, role: str) -> None:
    """Have Prometheus look for pods in `role`, and wait until it has scraped all three kinds of pods."""
    _say(f"spec.serviceDiscoveryRole: {role}")
    patch = json.dumps({"spec": {"serviceDiscoveryRole": role}})
    cluster.kubectl("patch", "prometheus", "stack", "--type=merge", "-p", patch)
    _wait_for_target(cluster, role, LOADING, _pod(cluster, LOADING)["status"]["podIP"], "loads")
    serving = cluster.wait_until(lambda: _pod(cluster, SERVES, ready=True), PATIENCE, "a pod serves")
    name, address = serving["metadata"]["name"], serving["status"]["podIP"]
    _wait_for_target(cluster, role, SERVES, address, "serves")
    answering = threading.Thread(target=_long_answer, args=(cluster,))
    answering.start()
    cluster.wait_until(lambda: _running(cluster, address), PATIENCE, "the request is seen to run")
    cluster.kubectl("delete", "pod", name, "--wait=false")
    ends = datetime.fromisoformat(cluster.get("pod", name)["metadata"]["deletionTimestamp"])
    asked = ends.timestamp() - cluster.get("pod", name)["metadata"]["deletionGracePeriodSeconds"]
    _wait_for_target(cluster, role, SERVES, address, "drains", since=asked)
    assert cluster.exists("pod", name), "the pod has ended before it was scraped while it drains"
    answering.join()


def _pod(cluster: Client, service: str, ready: bool = False) -> dict[str, Any]:
    """Return the pod of an LLMService that is not being deleted; nothing while there is none, or none is `ready`."""
    for pod in cluster.list("pods", selector=f"octavo.dev/llmservice={service},octavo.dev/track"):
        conditions = {each["type"]: each["status"] for each in pod["status"].get("conditions", [])}
        if "deletionTimestamp" not in pod["metadata"] and conditions.get("Ready") == ("True" if ready else "False"):
            return pod
    return {}


def _long_answer(cluster: Client) -> None:
    stream = sdk(cluster, SERVES).completions.create(
        model=SERVES, prompt="Once upon a time", max_tokens=400, stream=True, extra_body={"ignore_eos": True}
    )
    pieces = len(list(stream))
    _say(f"the answer of the pod that drained came to its end, in {pieces} pieces")


def _running(cluster: Client, address: str) -> bool:
    """Return True if a query of Prometheus says that a request runs on the pod of this address."""
    path = f'query?query=octavo_requests_running{{instance="{address}:8000"}}>0'
    return bool(_answer(cluster, path).get("result"))


def _wait_for_target(cluster: Client, role: str, service: str, address: str, state: str, since: float = 0.0) -> None:
    """Wait until the pod's target is up by `role`, scraped after `since` (seconds since 1970), and print it."""

    def seen() -> dict[str, Any] | None:
        for target in _answer(cluster, "targets?state=active")["activeTargets"]:
            scraped = datetime.fromisoformat(target["lastScrape"]).timestamp()
            right = target["labels"]["instance"] == f"{address}:8000" and ROLES[role] in target["discoveredLabels"]
            if right and target["health"] == "up" and scraped > since + 1:
                return dict(target)
        return None

    wanted = f"the pod of {service} that {state} is a target by {role}"
    found = cluster.wait_until(seen, PATIENCE, lambda: f"{wanted}: {_answer(cluster, 'targets')}")
    assert found["labels"].items() >= {"job": "octavo", "llmservice": service}.items(), found["labels"]
    shown = {name: found[name] for name in ("scrapePool", "scrapeUrl", "health", "lastScrape", "labels")}
    _say(f"a pod that {state}: {json.dumps(shown)}")


def _wait_for_operators(cluster: Client, namespace: str) -> None:
    """Wait until Octavo's operator itself is scraped, by the monitor of its chart, and print it."""

    def seen() -> list[dict[str, Any]]:
        targets = _answer(cluster, "targets?state=active")["activeTargets"]
        return [each for each in targets if each["labels"]["namespace"] == namespace and each["health"] == "up"]

    for target in cluster.wait_until(seen, PATIENCE, lambda: f"the operator is scraped: {_answer(cluster, 'targets')}"):
        _say(f"Octavo's operator: {json.dumps({name: target[name] for name in ('scrapePool', 'health', 'labels')})}")


def _show_alerts(cluster: Client) -> None:
    """Wait until the rules of both LLMServices are evaluated without an error, and print their number."""

    def sound() -> dict[str, list[str]] | None:
        groups = _answer(cluster, "rules")["groups"]
        found = {group["file"]: [rule["health"] for rule in group["rules"]] for group in groups}
        ours = {name: [file for file in found if f"-{name}-" in file] for name in (SERVES, LOADING)}
        return (
            found if all(ours.values()) and {each for healths in found.values() for each in healths} == {"ok"} else None
        )

    for file, healths in cluster.wait_until(sound, PATIENCE, "the rules are evaluated").items():
        _say(f"{len(healths)} rules of {Path(file).name}: all ok")


def _say(line: str) -> None:
    print(f"monitoring: {line}", flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ClusterError as error:
        print(f"monitoring: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
