"""Two replicas of the operator in a real Kubernetes: one leads, the other takes over, and a former leader stops
writing."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from tests.operator.bad_llmservices import VALID, merged

from .client import Client
from .octavo import ONLY_ON_OURS, OPERATOR, installed_operator, wait_for_condition
from .pod_processes import processes
from .watching import watched_holder

pytestmark = ONLY_ON_OURS  # processes are killed from the host

NOWHERE = {"spec": {"scheduling": {"nodeSelector": {"no-such": "node"}}}}
TAKEN_OVER = 20  # seconds


@pytest.fixture(scope="module")
def operator(cluster: Client) -> Iterator[Client]:
    """The operator with two replicas, cluster-wide."""
    with installed_operator(cluster, "--set", "operator.replicas=2") as system:
        yield system


def pods(operator: Client) -> list[dict[str, Any]]:
    return operator.list("pods", selector="app.kubernetes.io/name=octavo-operator")


def holder(operator: Client) -> str:
    """Return the name of the pod that the Lease names."""
    lease: dict[str, Any] = operator.get("lease", OPERATOR)
    return str(lease["spec"]["holderIdentity"]).rpartition("_")[0]


def leading(operator: Client) -> dict[str, Any]:
    """Return the pod that leads, once there are two that are ready."""

    def found() -> dict[str, Any] | None:
        ready = [pod for pod in pods(operator) if all(c["ready"] for c in pod["status"].get("containerStatuses", [{}]))]
        leader = [pod for pod in ready if pod["metadata"]["name"] == holder(operator)]
        return leader[0] if len(ready) == 2 and leader else None

    return operator.wait_until(found, 60, "two operators are ready, and one leads")


def main_process(pod: dict[str, Any]) -> psutil.Process:
    (process,) = processes(pod, "octavo-operator")
    return process


def leader_gauge(operator: Client, pod: str) -> float:
    path = f"/api/v1/namespaces/{operator.namespace}/pods/{pod}:8080/proxy/metrics"
    lines = operator.http.get(path).raise_for_status().text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("octavo_operator_leader "))


def scaled(client: Client, replicas: int, seconds: float) -> None:
    """A change of the service reaches its Deployment."""
    client.kubectl("scale", "llms/good", f"--replicas={replicas}")
    client.wait_until(
        lambda: client.get("deployment", "good")["spec"]["replicas"] == replicas, seconds, f"{replicas} replicas"
    )


def test_one_leads_and_says_so(operator: Client) -> None:
    leader = leading(operator)["metadata"]["name"]
    wanted = {pod["metadata"]["name"]: float(pod["metadata"]["name"] == leader) for pod in pods(operator)}

    def gauges() -> dict[str, float]:
        return {name: leader_gauge(operator, name) for name in wanted}

    # It leads as soon as the Lease is written, and knows it a moment later.
    operator.wait_until(lambda: gauges() == wanted, 30, lambda: f"{leader} leads alone: {gauges()}")
    assert len(wanted) == 2


def test_a_leader_that_is_killed_is_followed_by_another(operator: Client, namespace: Client) -> None:
    namespace.apply(merged(VALID, NOWHERE))
    wait_for_condition(namespace, "good", "Ready", "Unschedulable")
    old = leading(operator)
    main_process(old).send_signal(signal.SIGKILL)
    scaled(namespace, 2, TAKEN_OVER)
    assert holder(operator) != ""
    assert leading(operator)  # the killed one is there again


def test_a_leader_that_hangs_is_followed_and_ends_without_another_write(operator: Client, namespace: Client) -> None:
    namespace.apply(merged(VALID, NOWHERE))
    wait_for_condition(namespace, "good", "Ready", "Unschedulable")
    old = leading(operator)
    name = old["metadata"]["name"]
    restarts = old["status"]["containerStatuses"][0]["restartCount"]
    process = main_process(old)
    process.send_signal(signal.SIGSTOP)
    try:
        scaled(namespace, 3, TAKEN_OVER)
        assert holder(operator) != name
        # What the stopped one saw before is waiting in its sockets: it would write if it still might.
        namespace.kubectl("scale", "llms/good", "--replicas=4")
        namespace.wait_until(lambda: namespace.get("deployment", "good")["spec"]["replicas"] == 4, 10, "4 replicas")
        before = versions(namespace)
    finally:
        process.send_signal(signal.SIGCONT)

    def restarted() -> bool:
        return bool(operator.get("pod", name)["status"]["containerStatuses"][0]["restartCount"] > restarts)

    operator.wait_until(restarted, 30, "the one that hung ends and is started again")
    assert "exiting, to be restarted" in operator.kubectl("logs", name, "--previous")
    assert versions(namespace) == before


def versions(client: Client) -> dict[str, Any]:
    """Return values that change when an operator writes a child, but not with its status."""
    kinds = {"deployment": "generation", "poddisruptionbudget": "generation", "service": "resourceVersion"}
    return {kind: client.get(kind, "good")["metadata"][field] for kind, field in kinds.items()}


def test_an_operator_that_is_asked_to_end_hands_over(operator: Client, namespace: Client) -> None:
    namespace.apply(merged(VALID, NOWHERE))
    wait_for_condition(namespace, "good", "Ready", "Unschedulable")
    old = leading(operator)["metadata"]["name"]
    with watched_holder(operator, OPERATOR) as holders:
        operator.kubectl("delete", "pod", old, "--wait=false")
        operator.wait_until(lambda: holder(operator) not in {"", old}, 10, "the other one leads")
        scaled(namespace, 2, 10)
    assert holders.values[1] == "", "it was not released: the other one had to wait until it expired"


def test_the_operators_own_pods_are_protected_and_spread(operator: Client) -> None:
    assert leading(operator)
    allowed = "{.status.disruptionsAllowed}"
    operator.kubectl("wait", f"--for=jsonpath={allowed}=1", f"pdb/{OPERATOR}", "--timeout=180s")
    described = json.dumps(operator.get("deployment", OPERATOR)["spec"]["template"]["spec"])
    assert "topologySpreadConstraints" in described
