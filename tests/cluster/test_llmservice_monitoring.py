"""Objects for the Prometheus Operator and KEDA, validated by their real CRDs, which may be installed and removed at any
time."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from octavo_operator.render import OPTIONAL_KINDS
from tests.monitoring.programs import program
from tests.operator.bad_llmservices import VALID, merged
from tests.operator.golden import GOLDEN

from . import crds
from .client import Client, CommandError
from .octavo import accepted_strictly, condition, faults, installed_operator, wait_for_condition

NOWHERE = {"scheduling": {"nodeSelector": {"no-such": "node"}}}
LABELS = {"release": "kube-prometheus-stack"}
NOTICED = 60  # seconds; the operator asks every 20 which kinds there are


def golden_children(namespace: str) -> list[dict[str, Any]]:
    """Return all that the golden files expect, in `namespace`."""
    files = sorted(GOLDEN.glob("*/expected.yaml"))
    children = [child for file in files for child in yaml.safe_load_all(file.read_text())]
    return [merged(child, {"metadata": {"namespace": namespace}}) for child in children]


def test_every_golden_child_is_accepted_strictly(namespace: Client, monitoring_crds: None, keda_crds: None) -> None:
    children = golden_children(namespace.namespace)
    assert {child["kind"] for child in children} >= {"Deployment", *OPTIONAL_KINDS}
    assert len(accepted_strictly(namespace, *children)) == len(children)
    # A field that a CRD does not have is refused: else this test could not fail.
    (monitor,) = [child for child in children if child["kind"] == "ServiceMonitor"]
    with pytest.raises(CommandError, match=r"unknown field|not declared in schema"):
        accepted_strictly(namespace, merged(monitor, {"spec": {"intervall": "15s"}}))


def test_monitors_follow_the_crds(cluster: Client, namespace: Client) -> None:
    def made(kind: str) -> bool:
        return namespace.exists(f"{kind}.monitoring.coreos.com", "good")

    with installed_operator(cluster) as system:
        namespace.apply(merged(VALID, {"spec": {**NOWHERE, "monitoring": {"labels": LABELS}}}))
        wait_for_condition(namespace, "good", "Ready", "Unschedulable")
        with crds.installed(cluster, crds.PROMETHEUS_OPERATOR):
            for kind in ("servicemonitors", "prometheusrules"):
                namespace.wait_until(lambda kind=kind: made(kind), NOTICED, f"{kind} are made")  # type: ignore[misc]
                labels = namespace.get(f"{kind}.monitoring.coreos.com", "good")["metadata"]["labels"]
                assert labels.items() >= LABELS.items()
            namespace.kubectl("delete", "servicemonitors.monitoring.coreos.com", "good")
            namespace.wait_until(lambda: made("servicemonitors"), 10, "what was deleted by hand is made again")
            a_pod_that_loads_is_scraped(namespace)
            patch = '{"spec": {"monitoring": {"alerts": false}}}'
            namespace.kubectl("patch", "llms/good", "--type=merge", "-p", patch)
            namespace.wait_until(lambda: not made("prometheusrules"), 30, "rules that are not wanted go")
            assert made("servicemonitors")
            patch = '{"spec": {"monitoring": {"kind": "PodMonitor"}}}'
            namespace.kubectl("patch", "llms/good", "--type=merge", "-p", patch)
            namespace.wait_until(lambda: made("podmonitors"), 10, "the other kind is made")
            namespace.wait_until(lambda: not made("servicemonitors"), 10, "and this one goes")
            namespace.wait_until(lambda: not namespace.exists("service", "good-metrics"), 10, "with its Service")
        namespace.kubectl("patch", "llms/good", "--type=merge", "-p", '{"spec": {"monitoring": {"enabled": "Always"}}}')
        service = wait_for_condition(namespace, "good", "Degraded", "ApplyFailed")
        assert "this cluster has no PodMonitor: install its CRD" in condition(service, "Degraded")["message"]
        assert namespace.exists("deployment", "good")
        namespace.kubectl("patch", "llms/good", "--type=merge", "-p", '{"spec": {"monitoring": {"enabled": "Never"}}}')
        wait_for_condition(namespace, "good", "Ready", "Unschedulable")
        assert faults(system) == []


# An engine in its place that loads forever: it has metrics from the start, and is never ready.
LOADS = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/metrics" else 503)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(b"octavo_requests_waiting 3\\n" if self.path == "/metrics" else b"{}")
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer(("", 8000), Handler).serve_forever()
"""


def a_pod_that_loads_is_scraped(client: Client) -> None:
    """Check with a real Prometheus that scrapes what the ServiceMonitor selects."""
    engine = {"name": "engine", "image": "octavo-engine:dev", "command": ["python", "-c", LOADS], "args": []}
    spec = {"podTemplate": {"spec": {"containers": [engine]}}, "scheduling": None}
    client.kubectl("patch", "llms/good", "--type=merge", "-p", json.dumps({"spec": spec}))
    monitor = client.get("servicemonitors.monitoring.coreos.com", "good")
    run_prometheus(client, scrape_config(client, monitor))
    found = client.wait_until(lambda: series(client, "octavo_requests_waiting == 3"), 60, "the pod is scraped")
    pods = client.list("pods", selector="octavo.dev/llmservice=good,octavo.dev/track")
    (pod,) = [each for each in pods if "podIP" in each["status"]]  # another finds no node
    wanted = {"instance": f"{pod['status']['podIP']}:8000", "llmservice": "good", "job": "octavo"}
    assert [each["metric"].items() >= wanted.items() for each in found] == [True]
    assert not [each for each in pod["status"]["conditions"] if each["type"] == "Ready" and each["status"] == "True"]


def scrape_config(client: Client, monitor: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration that the Prometheus Operator makes of a ServiceMonitor with one endpoint.

    Debian's Prometheus has no discovery by the API server, so the addresses come from the headless Service's DNS name.
    """
    spec = monitor["spec"]
    selected = ",".join(f"{name}={value}" for name, value in spec["selector"]["matchLabels"].items())
    (service,), (endpoint,) = client.list("service", selector=selected), spec["endpoints"]
    (port,) = [each["port"] for each in service["spec"]["ports"] if each["name"] == endpoint["port"]]
    meta = {
        "__meta_kubernetes_service_label_" + "".join(c if c.isalnum() else "_" for c in name): value
        for name, value in service["metadata"]["labels"].items()
    }
    name = f"{service['metadata']['name']}.{client.namespace}.svc.cluster.local"
    labels = {"job": service["metadata"]["labels"][spec["jobLabel"]]}
    labels |= {each["targetLabel"]: meta[each["sourceLabels"][0]] for each in endpoint["relabelings"]}
    return {
        "job_name": "serviceMonitor",
        "metrics_path": endpoint["path"],
        "scrape_interval": "1s",
        "dns_sd_configs": [{"names": [name], "type": "A", "port": port, "refresh_interval": "1s"}],
        "relabel_configs": [{"target_label": label, "replacement": value} for label, value in labels.items()],
    }


def run_prometheus(client: Client, scrape: dict[str, Any]) -> None:
    configuration = yaml.safe_dump({"global": {"scrape_timeout": "1s"}, "scrape_configs": [scrape]})
    client.kubectl("create", "configmap", "prometheus", f"--from-literal=prometheus.yaml={configuration}")
    binary = program("prometheus")
    container = {
        "name": "prometheus",
        "image": "octavo-engine:dev",
        "command": [
            f"/program/{binary.name}",
            "--config.file=/config/prometheus.yaml",
            "--storage.tsdb.path=/tmp/data",
        ],
        "ports": [{"containerPort": 9090}],
        "volumeMounts": [
            {"name": "program", "mountPath": "/program"},
            {"name": "config", "mountPath": "/config"},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }
    volumes = [
        {"name": "program", "hostPath": {"path": str(binary.resolve().parent)}},
        {"name": "config", "configMap": {"name": "prometheus"}},
        {"name": "tmp", "emptyDir": {}},
    ]
    spec = {"containers": [container], "volumes": volumes}
    client.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "prometheus"}, "spec": spec})


def series(client: Client, expression: str) -> list[dict[str, Any]]:
    """Return the series of an instant query; none while Prometheus starts."""
    path = f"{client.path('pods', 'prometheus')}:9090/proxy/api/v1/query"
    answer = client.http.get(path, params={"query": expression})
    return list(answer.json()["data"]["result"]) if answer.is_success else []
