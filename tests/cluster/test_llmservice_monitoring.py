"""What the Prometheus Operator and KEDA are given, judged by their real CRDs, which may come and go at any time."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from octavo_operator.render import OPTIONAL_KINDS
from tests.operator.bad_llmservices import VALID, merged
from tests.operator.golden import GOLDEN

from . import crds
from .client import Client, CommandError
from .octavo import accepted_strictly, condition, installed_operator, wait_for_condition

NOWHERE = {"scheduling": {"nodeSelector": {"no-such": "node"}}}
LABELS = {"release": "kube-prometheus-stack"}
NOTICED = 60  # seconds; the operator asks every 20 which kinds there are


def golden_children(namespace: str) -> list[dict[str, Any]]:
    """All that the golden files expect, in `namespace`."""
    files = sorted(GOLDEN.glob("*/expected.yaml"))
    children = [child for file in files for child in yaml.safe_load_all(file.read_text())]
    return [merged(child, {"metadata": {"namespace": namespace}}) for child in children]


def test_every_golden_child_is_accepted_strictly(namespace: Client, monitoring_crds: None, keda_crds: None) -> None:
    children = golden_children(namespace.namespace)
    assert {child["kind"] for child in children} >= {"Deployment", *OPTIONAL_KINDS}
    assert len(accepted_strictly(namespace, *children)) == len(children)


def test_a_field_that_a_crd_does_not_have_is_refused(namespace: Client, monitoring_crds: None) -> None:
    """Else the test above could not fail."""
    (monitor,) = [
        child
        for child in golden_children(namespace.namespace)
        if child["kind"] == "PodMonitor" and child["metadata"]["name"] == "monitoring"
    ]
    with pytest.raises(CommandError, match=r"unknown field|not declared in schema"):
        accepted_strictly(namespace, merged(monitor, {"spec": {"intervall": "15s"}}))


def test_monitors_follow_the_crds(cluster: Client, namespace: Client) -> None:
    def made(kind: str) -> bool:
        return namespace.exists(f"{kind}.monitoring.coreos.com", "good")

    with installed_operator(cluster) as system:
        namespace.apply(merged(VALID, {"spec": {**NOWHERE, "monitoring": {"labels": LABELS}}}))
        wait_for_condition(namespace, "good", "Ready", "Unschedulable")
        with crds.installed(cluster, crds.PROMETHEUS_OPERATOR):
            for kind in ("podmonitors", "prometheusrules"):
                namespace.wait_until(lambda kind=kind: made(kind), NOTICED, f"{kind} are made")  # type: ignore[misc]
                labels = namespace.get(f"{kind}.monitoring.coreos.com", "good")["metadata"]["labels"]
                assert labels.items() >= LABELS.items()
            namespace.kubectl("delete", "podmonitors.monitoring.coreos.com", "good")
            namespace.wait_until(lambda: made("podmonitors"), 10, "what was deleted by hand is made again")
            patch = '{"spec": {"monitoring": {"alerts": false}}}'
            namespace.kubectl("patch", "llms/good", "--type=merge", "-p", patch)
            namespace.wait_until(lambda: not made("prometheusrules"), 30, "rules that are not wanted go")
            assert made("podmonitors")
        namespace.kubectl("patch", "llms/good", "--type=merge", "-p", '{"spec": {"monitoring": {"enabled": "Always"}}}')
        service = wait_for_condition(namespace, "good", "Degraded", "ApplyFailed")
        assert "this cluster has no PodMonitor: install its CRD" in condition(service, "Degraded")["message"]
        assert namespace.exists("deployment", "good")
        namespace.kubectl("patch", "llms/good", "--type=merge", "-p", '{"spec": {"monitoring": {"enabled": "Never"}}}')
        wait_for_condition(namespace, "good", "Ready", "Unschedulable")
        assert restarts(system) == 0


def restarts(system: Client) -> int:
    """How often the operator's containers were restarted."""
    pods = system.list("pods", selector="app.kubernetes.io/name=octavo-operator")
    return sum(status["restartCount"] for pod in pods for status in pod["status"]["containerStatuses"])
