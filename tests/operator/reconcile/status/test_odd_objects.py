"""Objects of other programs that lack optional fields end no reconcile pass."""

from __future__ import annotations

import random
from typing import Any

import aiohttp
import pytest

from octavo_operator.api.names import pod_labels
from octavo_operator.api.resource import parse
from octavo_operator.reconcile.kinds import BY_NAME, ENDPOINT_SLICE, LLMSERVICE, POD, Kind
from octavo_operator.reconcile.observation.observe import Index, Key, Observation, key_of
from octavo_operator.reconcile.observation.trimmed import trimmed
from octavo_operator.reconcile.pods.pod_view import views
from octavo_operator.reconcile.polling.adapter_watch import AdapterWatch
from octavo_operator.reconcile.queue import WorkQueue
from octavo_operator.reconcile.rollout.rollout import rollout_state
from octavo_operator.reconcile.status.facts import Result
from octavo_operator.reconcile.status.stalled import patience_seconds
from octavo_operator.reconcile.status.summarize import summarize
from octavo_operator.reconcile.status.unobserved import UnobservedChanges
from octavo_operator.reconcile.watching.watches import _was_changed
from tests.operator.bad_llmservices import GONE, VALID, merged

THEN, NOW = "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"
REQUIRED = {"metadata", "kind", "name", "namespace", "uid", "type", "containerPort", "exitCode"}
REQUIRED |= {"secretName", "claimName"}
"""Fields that the API server demands, here."""


def conditions(*types: str) -> list[dict[str, Any]]:
    words = "exceeded quota: few, requested: pods=1, used: ; 0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    since = {"lastTransitionTime": THEN, "message": words}
    return [
        {"type": each, "status": status, "reason": reason, **since}
        for each in types
        for status in ("True", "False")
        for reason in ("Unschedulable", "SchedulingGated", "ProgressDeadlineExceeded", "ReplicaSetCreateError")
    ]


def container(name: str) -> dict[str, Any]:
    ended = {"terminated": {"exitCode": 3, "reason": "Error", "message": "gone", "finishedAt": THEN}}
    states = {"waiting": {"reason": "ErrImagePull", "message": "no"}, "running": {"startedAt": THEN}, **ended}
    return {"name": name, "image": "x", "ready": True, "started": True, "restartCount": 1, "state": states,
            "lastState": ended}  # fmt: skip


METADATA = {"name": "good", "namespace": "llm", "uid": "u", "labels": pod_labels("good"), "generation": 2,
            "creationTimestamp": THEN, "managedFields": [{"manager": "x", "operation": "Update", "time": THEN}],
            "ownerReferences": [{"kind": "LLMService", "name": "good", "uid": "u", "controller": True}]}  # fmt: skip
ENGINE = {"name": "engine", "image": "x", "ports": [{"name": "http", "containerPort": 8000}],
          "resources": {"requests": {"cpu": "1e3", "memory": "1Ei"}, "limits": {"memory": "1Ei"}}}  # fmt: skip
ALL: dict[Kind, dict[str, Any]] = {
    POD: {
        "spec": {"containers": [ENGINE], "initContainers": [{"name": "fetch", "restartPolicy": "Always"}],
                 "volumes": [{"name": "a", "secret": {"secretName": "s"}}, {"name": "b"},
                             {"name": "c", "persistentVolumeClaim": {"claimName": "c"}}],
                 "nodeName": "n", "schedulerName": "s", "resourceClaims": [{"name": "g"}],
                 "schedulingGates": [{"name": "g"}], "affinity": {"nodeAffinity": {}}},
        "status": {"phase": "Running", "startTime": THEN, "containerStatuses": [container("engine"), container("mesh")],
                   "initContainerStatuses": [container("fetch")],
                   "conditions": conditions("PodScheduled", "Ready", "ContainersReady", "PodReadyToStartContainers")},
    },
    BY_NAME["Deployment"]: {
        "spec": {"replicas": 1, "strategy": {"rollingUpdate": {"maxSurge": 0}},
                 "template": {"spec": {"containers": [ENGINE]}}},
        "status": {"observedGeneration": 2, "replicas": 2, "updatedReplicas": 1, "readyReplicas": 1,
                   "availableReplicas": 1, "conditions": conditions("Progressing", "ReplicaFailure")},
    },
    ENDPOINT_SLICE: {
        "endpoints": [{"conditions": {"ready": True}, "targetRef": {"kind": "Pod", "name": "good"}}],
        "ports": [{"name": "http", "port": 8000}],
    },
    BY_NAME["HorizontalPodAutoscaler"]: {
        "status": {"desiredReplicas": 2, "lastScaleTime": THEN,
                   "conditions": conditions("AbleToScale", "ScalingActive"),
                   "currentMetrics": [{"type": "External", "external": {"metric": {"name": "octavo_requests_waiting"},
                                                                         "current": {"averageValue": "-1"}}}]},
    },
}  # fmt: skip


def with_some_fields(value: Any, chance: random.Random, keep: float) -> Any:
    """`value` with that share of its optional fields, and of the items of its lists."""
    if isinstance(value, dict):
        kept = {name for name in value if name in REQUIRED or chance.random() < keep}
        return {name: with_some_fields(inner, chance, keep) for name, inner in value.items() if name in kept}
    if isinstance(value, list):
        return [with_some_fields(each, chance, keep) for each in value if chance.random() < keep]
    return value


@pytest.mark.parametrize("keep", [0.5, 0.8, 0.95])
def test_what_may_be_missing_ends_no_pass(keep: float) -> None:
    chance, autoscaling = random.Random(7), {"autoscaling": {"maxReplicas": 2}, "replicas": GONE}
    metadata = {"uid": "u", "generation": 3, "namespace": "llm"}
    services = [parse(merged(VALID, {"metadata": metadata, "spec": spec})) for spec in ({}, autoscaling)]
    for _ in range(150):
        seen: dict[Kind, Any] = {}
        for kind, parts in ALL.items():
            body = with_some_fields({"metadata": METADATA, **parts}, chance, keep)
            key_of(kind, body)
            seen[kind] = trimmed(kind, body)
        slices, pods = (seen.pop(ENDPOINT_SLICE),), (seen.pop(POD),)
        children = {(kind.name, "good"): child for kind, child in seen.items()}
        deployment, changes = children["Deployment", "good"], UnobservedChanges()
        for service in services:
            state = rollout_state(service.spec.rollout, deployment, views(service, pods), NOW)
            observed = Observation({}, children, pods, slices=slices, unobserved_since=THEN)
            changes.note(("llm", "good"), observed, NOW)
            summarize(service, observed, "image", Result(rollout=state), NOW)
            patience_seconds(views(service, pods), NOW)


async def test_an_llmservice_of_another_shape_ends_no_watch() -> None:
    odd: dict[str, Any] = {"metadata": {"name": "good", "generation": 2}, "spec": "x", "status": "x"}
    assert not _was_changed(odd)
    key: Key = ("llm", "good")
    indexes: dict[str, Index] = {LLMSERVICE.plural: {key: [odd]}, POD.plural: {}}
    async with aiohttp.ClientSession() as session:
        await AdapterWatch(indexes, WorkQueue()).poll_once(session)
