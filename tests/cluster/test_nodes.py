"""Several nodes, of which some are lost or cordoned: scripted ones, on which no program runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from .client import Client
from .octavo import condition, installed_operator, wait_for_condition
from .scripted_nodes import LABEL, scripted_nodes
from .test_unhappy_cluster import at_once

SOON = [
    {"key": f"node.kubernetes.io/{taint}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 3}
    for taint in ("unreachable", "not-ready")
]
"""Kubernetes waits five minutes by default before it replaces the pods of a lost node."""
CHANGE = json.dumps({"spec": {"engine": {"env": [{"name": "CHANGED", "value": "yes"}]}}})


@pytest.fixture(scope="module")
def operator(cluster: Client) -> Iterator[Client]:
    """The operator, cluster-wide: it reads nodes."""
    with installed_operator(cluster, "--set", "autoscaling.direct=true") as system:
        yield system


def of_two_replicas(**fields: Any) -> dict[str, Any]:
    """An LLMService whose two pods have a GPU each, on scripted nodes."""
    scheduling = {"nodeSelector": {LABEL: "true"}, "tolerations": [{"key": LABEL, "operator": "Exists"}, *SOON]}
    return at_once("model", replicas=2, accelerator={"count": 1}, scheduling=scheduling, **fields)


def running(client: Client) -> dict[str, str]:
    """The nodes of the pods that are not ending, by the uids of the pods."""
    pods = [pod for pod in client.list("pods") if "deletionTimestamp" not in pod["metadata"]]
    return {pod["metadata"]["uid"]: pod["spec"].get("nodeName", "") for pod in pods}


def replicas(client: Client, which: str = "ready") -> int:
    return int(client.get("llms", "model")["status"].get(f"{which}Replicas", 0))


def test_a_lost_node_costs_a_replica_until_another_pod_takes_its_place(operator: Client, namespace: Client) -> None:
    with scripted_nodes(namespace, "octavo-lost-1", "octavo-lost-2") as nodes:
        namespace.apply(of_two_replicas())
        namespace.wait_until(lambda: replicas(namespace, "available") == 2, 60, "both pods count as available")
        before = running(namespace)

        nodes.lose("octavo-lost-1")
        service = wait_for_condition(namespace, "model", "Ready", "FewerReplicas", 60)
        assert condition(service, "Ready")["message"] == "1 of 2 replicas serve"
        assert service["status"]["readyReplicas"] == service["status"]["availableReplicas"] == 1

        wait_for_condition(namespace, "model", "Progressing", "WaitingForGPU", 60)
        new = {uid: node for uid, node in running(namespace).items() if uid not in before}
        assert list(new.values()) == [""], "a pod in its place waits for a GPU"

        nodes.find("octavo-lost-1")
        namespace.wait_until(lambda: replicas(namespace) == 2, 60, "the new pod serves")
        assert sorted(running(namespace).values()) == ["octavo-lost-1", "octavo-lost-2"]


@pytest.mark.parametrize("cordoned", [1, 2])
def test_a_rollout_in_place_ends_no_pod_on_a_cordoned_node(cordoned: int, operator: Client, namespace: Client) -> None:
    """Its end would make no room for a new pod, and the rollout would not go on where there is room."""
    names = ["octavo-cordoned-1", "octavo-cordoned-2"]
    closed = names.pop(cordoned - 1)
    (open_,) = names
    with scripted_nodes(namespace, closed, open_):
        namespace.apply(of_two_replicas(rollout={"surgeTimeoutSeconds": 10}))
        namespace.wait_until(lambda: replicas(namespace) == 2, 60, "both pods are ready")
        before = {node: uid for uid, node in running(namespace).items()}
        namespace.kubectl("cordon", closed)
        namespace.kubectl("patch", "llms", "model", "--type=merge", "-p", CHANGE)

        def blocked() -> bool:
            """Whether the open node has the new pod, and another one waits while all replicas serve."""
            now = {node: uid for uid, node in running(namespace).items()}
            replaced = now.keys() == {"", closed, open_} and now[open_] != before[open_]
            return replaced and now[closed] == before[closed] and replicas(namespace) == 2

        namespace.wait_until(blocked, 90, lambda: f"a new pod is on {open_}: {running(namespace)}, before {before}")
        service = wait_for_condition(namespace, "model", "RolloutBlocked", "NoGPUForSurge", 60)
        assert f"kubectl uncordon {closed}" in condition(service, "RolloutBlocked")["message"]

        namespace.kubectl("uncordon", closed)
        wait_for_condition(namespace, "model", "Progressing", "Deployed", 90)
        after = running(namespace)
        assert sorted(after.values()) == sorted((closed, open_)) and not after.keys() & set(before.values())
