"""A rolling update on a cluster whose only accelerator is in use: it continues in place, and the next one surges again.

The accelerator is a number in the node's capacity (no device stands behind it); the scheduler counts it, the engine in
the pod is real and computes on the CPU.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.operator.bad_llmservices import merged

from .client import Client
from .layout import NODE
from .octavo import ONLY_ON_OURS, SAMPLES, condition, installed_operator, wait_for_condition
from .watching import watched_reasons

pytestmark = ONLY_ON_OURS  # the node's capacity is changed

NPU = "example.com/npu"
SAMPLE: dict[str, Any] = yaml.safe_load((SAMPLES / "smollm2.yaml").read_text())
NAME = SAMPLE["metadata"]["name"]
LOADED = 300  # seconds that a model may take to load on a machine that does much else
ON_CPU = ["serve", "smollm2", "--device=cpu", "--host=0.0.0.0", "--port=8000", "--max-model-len=2048"]
"""The engine's arguments, by podTemplate: with an accelerator the operator would have said --device=cuda."""
ONE_NPU = {
    "podTemplate": {"spec": {"containers": [{"name": "engine", "args": ON_CPU}]}},
    "accelerator": {"count": 1, "resourceName": NPU},
    "rollout": {"surgeTimeoutSeconds": 3600, "drainTimeoutSeconds": 5},
}
SOON = json.dumps({"spec": {"rollout": {"surgeTimeoutSeconds": 10}}})
"""For later: an operator that stood still for ten seconds from the start would go in place without a word."""
IN_PLACE = {"maxSurge": 0, "maxUnavailable": 1}


@pytest.fixture(scope="module")
def operator(cluster: Client) -> Iterator[Client]:
    """The operator, on a cluster with one accelerator."""
    path = f"/status/capacity/{NPU.replace('/', '~1')}"
    change_capacity(cluster, {"op": "add", "path": path, "value": "1"})
    try:
        with installed_operator(cluster) as system:
            yield system
    finally:
        change_capacity(cluster, {"op": "remove", "path": path})


def change_capacity(cluster: Client, patch: dict[str, str]) -> None:
    cluster.kubectl("patch", "node", NODE, "--subresource=status", "--type=json", "-p", json.dumps([patch]))


def strategy(client: Client) -> dict[str, int]:
    return dict(client.get("deployment", NAME)["spec"]["strategy"]["rollingUpdate"])


@pytest.mark.timeout(900)
def test_a_rolling_update_without_a_free_accelerator_goes_on_in_place(operator: Client, namespace: Client) -> None:
    namespace.apply(merged(SAMPLE, {"spec": ONE_NPU}))
    wait_for_condition(namespace, NAME, "Ready", "Serving", LOADED)
    change = json.dumps({"spec": {"engine": {"env": [{"name": "CHANGED", "value": "yes"}]}}})
    with watched_reasons(namespace, NAME, "RolloutBlocked") as reasons:
        namespace.kubectl("patch", "llms", NAME, "--type=merge", "-p", change)

        service = wait_for_condition(namespace, NAME, "RolloutBlocked", "NoGPUForSurge", 60)
        assert condition(service, "RolloutBlocked")["status"] == "True"
        assert condition(service, "Ready")["status"] == "True"  # the old pod serves on
        assert f"Insufficient {NPU}" in condition(service, "RolloutBlocked")["message"]

        namespace.kubectl("patch", "llms", NAME, "--type=merge", "-p", SOON)
        namespace.wait_until(lambda: strategy(namespace) == IN_PLACE, 60, "the rollout goes on in place", every=0.2)
        wait_for_condition(namespace, NAME, "Progressing", "Deployed", LOADED)
        wait_for_condition(namespace, NAME, "RolloutBlocked", "NotBlocked", 60)
    assert reasons.values == ["NotBlocked", "NoGPUForSurge", "WentInPlace", "NotBlocked"]
    assert strategy(namespace) == {"maxSurge": 1, "maxUnavailable": 0}
    (pod,) = [pod for pod in namespace.list("pods") if "deletionTimestamp" not in pod["metadata"]]
    assert {"name": "CHANGED", "value": "yes"} in pod["spec"]["containers"][0]["env"]
    assert len(namespace.list("replicasets")) == 2  # changing the strategy began no rollout of its own
    events = namespace.kubectl("describe", "llms", NAME).partition("Events:")[2]
    assert "NoGPUForSurge" in events  # kubectl sorts by a time that events of events.k8s.io do not have
    assert "WentInPlace" in events
    a_preempted_pod_is_named_with_the_one_that_took_its_place(namespace, pod["metadata"]["name"])


def a_preempted_pod_is_named_with_the_one_that_took_its_place(namespace: Client, pod: str) -> None:
    important = f"{namespace.namespace}-important"
    container = {"name": "main", "image": "octavo-engine:dev", "resources": {"limits": {NPU: "1"}}}
    spec = {"priorityClassName": important, "containers": [container]}
    priority = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 1000}
    try:
        namespace.apply(
            {**priority, "metadata": {"name": important}},
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "taker"}, "spec": spec},
        )
        service = wait_for_condition(namespace, NAME, "Degraded", "Preempted", 60)
        message = condition(service, "Degraded")["message"]
        assert f"pod {pod} on node {NODE} was preempted at" in message

        def named() -> bool:
            return (
                f"for pod {namespace.namespace}/taker," in condition(namespace.get("llms", NAME), "Degraded")["message"]
            )

        namespace.wait_until(named, 60, "the pod that took its place is named")
    finally:
        namespace.kubectl("delete", "priorityclass", important, "--ignore-not-found")
