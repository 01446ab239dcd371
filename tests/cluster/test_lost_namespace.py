"""An operator of two namespaces goes on with the one when it may no longer read the other, and comes back to that."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.operator.bad_llmservices import VALID, merged

from .client import Client
from .octavo import OPERATOR, installed_operator, wait_for_condition

NOWHERE = {"spec": {"scheduling": {"nodeSelector": {"no-such": "node"}}}}
NOTICED = 60  # seconds: it asks every 10
OTHER = "octavo-test-lost"


@pytest.fixture
def lost(cluster: Client) -> Iterator[Client]:
    """A second namespace."""
    cluster.kubectl("create", "namespace", OTHER)
    try:
        yield cluster.in_namespace(OTHER)
    finally:
        cluster.kubectl("delete", "namespace", OTHER, "--wait=false")


def readable(system: Client, namespace: str) -> str:
    """What the operator's metric says of the namespace."""
    (pod,) = system.list("pods", selector="app.kubernetes.io/name=octavo-operator")
    text = system.http.get(f"{system.path('pods', pod['metadata']['name'])}:8080/proxy/metrics").text
    name = f'octavo_operator_namespace_readable{{namespace="{namespace}"}} '
    return next((line.removeprefix(name) for line in text.splitlines() if line.startswith(name)), "")


@pytest.mark.timeout(300)
def test_a_lost_namespace_stops_nothing_in_the_others(cluster: Client, namespace: Client, lost: Client) -> None:
    names = f"namespaces={{{namespace.namespace},{OTHER}}}"
    with installed_operator(cluster, "--set", names) as system:
        binding = lost.get("rolebinding", OPERATOR)
        lost.kubectl("delete", "rolebinding", OPERATOR)
        system.wait_until(lambda: readable(system, OTHER) == "0.0", NOTICED, "the loss is noticed")
        namespace.apply(merged(VALID, NOWHERE))
        wait_for_condition(namespace, "good", "Ready", "Unschedulable", 30)
        lost.apply(merged(VALID, NOWHERE))
        kept = {name: binding["metadata"][name] for name in ("name", "namespace", "labels", "annotations")}
        lost.apply({**binding, "metadata": kept})
        wait_for_condition(lost, "good", "Ready", "Unschedulable", NOTICED)
        assert readable(system, OTHER) == "1.0"
        (pod,) = system.list("pods", selector="app.kubernetes.io/name=octavo-operator")
        assert pod["status"]["containerStatuses"][0]["restartCount"] == 0
