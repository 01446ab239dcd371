"""An operator of two namespaces loses the right to read some objects of one; it still works in the other, and on all
else."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.operator.bad_llmservices import VALID, merged

from .client import Client
from .octavo import OPERATOR, condition, faults, installed_operator, wait_for_condition

NOWHERE = {"scheduling": {"nodeSelector": {"no-such": "node"}}}
NOTICED = 60  # seconds: it asks every 10
SCALED = {"autoscaling": {"minReplicas": 1, "maxReplicas": 2}}


@dataclass(frozen=True)
class Namespaces:
    """The operator's own namespace, and the two that it watches."""

    system: Client
    kept: Client
    lost: Client

    def operator(self, path: str) -> str:
        """Return the operator's answer at a path of its health endpoint."""
        (pod,) = self.system.list("pods", selector="app.kubernetes.io/name=octavo-operator")
        return self.system.http.get(f"{self.system.path('pods', pod['metadata']['name'])}:8080/proxy/{path}").text

    def metric(self, name: str) -> str:
        """Return the value of a metric with its labels; empty: there is none."""
        lines = self.operator("metrics").splitlines()
        return next((line.removeprefix(f"{name} ") for line in lines if line.startswith(f"{name} ")), "")

    def wait_for_metric(self, name: str, value: str) -> None:
        self.system.wait_until(lambda: self.metric(name) == value, NOTICED, f"{name} is {value or 'gone'}")


@pytest.fixture(scope="module")
def namespaces(cluster: Client) -> Iterator[Namespaces]:
    """An operator of two namespaces."""
    suffix = secrets.token_hex(3)
    names = [f"octavo-test-{word}-{suffix}" for word in ("kept", "lost")]
    for name in names:
        cluster.kubectl("create", "namespace", name)
    try:
        with installed_operator(cluster, "--set", f"namespaces={{{','.join(names)}}}") as system:
            yield Namespaces(system, *map(cluster.in_namespace, names))
            assert faults(system) == []
    finally:
        cluster.kubectl("delete", "namespace", *names, "--wait=false")


def llmservice(name: str, **fields: Any) -> dict[str, Any]:
    return merged(VALID, {"metadata": {"name": name}, "spec": {**NOWHERE, **fields}})


def changed_rights(client: Client, changes: dict[str, list[str]]) -> None:
    """Give the operator's Role in the namespace other verbs for some resources."""
    role = client.get("role", OPERATOR)
    rules = []
    for rule in role["rules"]:
        for resource in rule["resources"]:
            verbs = changes.get(resource, rule["verbs"])
            rules += [{**rule, "resources": [resource], "verbs": verbs}] if verbs else []
    applied(client, {**role, "rules": rules})


def applied(client: Client, live: dict[str, Any]) -> None:
    """Replace an object of the chart by `live`."""
    kept = {name: live["metadata"][name] for name in ("name", "namespace", "labels", "annotations")}
    client.kubectl("replace", "-f", "-", input=json.dumps({**live, "metadata": kept}))


def degraded(client: Client, name: str) -> str:
    """Return the message of the LLMService's condition Degraded."""
    return str(condition(client.get("llms", name), "Degraded").get("message", ""))


def test_a_lost_namespace_stops_nothing_in_the_others(namespaces: Namespaces) -> None:
    kept, lost = namespaces.kept, namespaces.lost
    readable = f'octavo_operator_namespace_readable{{namespace="{lost.namespace}"}}'
    binding = lost.get("rolebinding", OPERATOR)
    lost.kubectl("delete", "rolebinding", OPERATOR)
    namespaces.wait_for_metric(readable, "0.0")
    kept.apply(llmservice("good"))
    wait_for_condition(kept, "good", "Ready", "Unschedulable", 30)
    lost.apply(llmservice("good"))
    given = {name: binding["metadata"][name] for name in ("name", "namespace", "labels", "annotations")}
    lost.apply({**binding, "metadata": given})
    wait_for_condition(lost, "good", "Ready", "Unschedulable", NOTICED)
    assert namespaces.metric(readable) == "1.0"


def test_a_missing_right_stops_nothing_else_and_is_named(namespaces: Namespaces) -> None:
    lost, where = namespaces.lost, f'namespace="{namespaces.lost.namespace}"'
    role = lost.get("role", OPERATOR)
    taken = {
        "horizontalpodautoscalers": [],
        "pods": ["list", "patch"],
        "poddisruptionbudgets": ["get", "list", "watch", "patch"],
        "llmservices/status": [],
    }
    changed_rights(lost, taken)
    lost.apply(llmservice("mute"))  # its status cannot be written
    lost.wait_until(lambda: lost.exists("deployment", "mute"), NOTICED, "all but the status is made")
    right = "octavo_operator_right_missing{{" + where + ',resource="{}",verb="{}"}}'
    namespaces.wait_for_metric(right.format("llmservices/status.octavo.dev", "patch"), "1.0")
    del taken["llmservices/status"]
    applied(lost, role)
    changed_rights(lost, taken)
    lost.apply(llmservice("blind", **SCALED))
    # Kinds are asked for one after the other: of those before the change it hears ten seconds later.
    for refused in ("list", "horizontalpodautoscalers"), ("watch", "pods"), ("create", "poddisruptionbudgets"):
        words = 'cannot {} resource "{}"'.format(*refused)
        lost.wait_until(lambda words=words: words in degraded(lost, "blind"), NOTICED, lambda: degraded(lost, "blind"))  # type: ignore[misc]
    service = wait_for_condition(lost, "blind", "Degraded", "RightsMissing", NOTICED)
    assert condition(service, "ModelLoaded")["status"] == "Unknown"
    assert lost.exists("service", "blind")
    assert lost.exists("deployment", "blind")
    namespaces.wait_for_metric(right.format("horizontalpodautoscalers.autoscaling", "list"), "1.0")
    assert f"may not watch pods in namespace {lost.namespace}" in namespaces.operator("healthz")
    applied(lost, role)
    for name in ("mute", "blind"):
        wait_for_condition(lost, name, "Degraded", "AsExpected", NOTICED)
    assert lost.exists("horizontalpodautoscaler", "blind")
    assert "not watched" not in namespaces.operator("healthz")
