"""Conditions beside each other: none contradicts another, and each that reports a fault is explained by one."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from octavo_operator.api.conditions import Reason
from octavo_operator.api.status import LLMServiceStatus
from octavo_operator.reconcile.kinds import LLMSERVICE, POD
from octavo_operator.reconcile.observation.observe import Observation, observe
from octavo_operator.reconcile.pods.pod_view import views
from octavo_operator.reconcile.problem import Problem
from octavo_operator.reconcile.rollout.rollout import rollout_state
from octavo_operator.reconcile.status.facts import Result
from octavo_operator.reconcile.status.summarize import summarize
from tests.operator.reconcile.status.test_stalled import LATER, QUOTA, REFUSED, crashed, no_node, unseen
from tests.operator.reconcile.status.test_summarize import RUNNING, SERVING, deployment, pod, service, waiting

BEGAN = "2026-01-01T00:00:10Z"
CONTESTED = Problem(Reason.FIELD_CONFLICT, "Deployment good keeps being changed: spec.template.metadata.labels by x")
ENDS = "the LLMService is being deleted; its pods end before it"
PAUSED = {"rollout": {"paused": True}}


def of_revision(revision: str, found: dict[str, Any], created: str = "2026-01-01T00:00:00Z") -> dict[str, Any]:
    labels = {"pod-template-hash": revision}
    metadata = {**found["metadata"], "name": f"good-{revision}", "labels": labels, "creationTimestamp": created}
    return {**found, "metadata": metadata}


def seen(
    *pods: dict[str, Any],
    result: Result | None = None,
    of: dict[str, Any] | None = None,
    wanted: int = 1,
    **counts: Any,
) -> LLMServiceStatus:
    """The status a minute after the pods were made, with the rollout's state as the reconciler finds it."""
    spec, children = service(**(of or {})), deployment(**counts)
    children["Deployment", "good"]["spec"] = {"replicas": wanted}
    rollout = rollout_state(spec.spec.rollout, children["Deployment", "good"], views(spec, pods), LATER)
    found = replace(result or Result(), rollout=rollout)
    return summarize(spec, Observation({}, children, pods), "image", found, LATER)


def states(status: LLMServiceStatus) -> dict[str, str]:
    """Each condition as one text, such as "False Deployed 1 of 1 replicas ..."."""
    return {each.type: f"{each.status} {each.reason} {each.message}" for each in status.conditions}


CRASHES = pod(container=crashed(2))
OLD_SERVES = of_revision("r1", pod(container=SERVING))
NEW_CRASHES = of_revision("r2", CRASHES, BEGAN)
FAILED = {
    **pod(phase="Failed", reason="Evicted", message="The node was low on resource: memory."),
    "statusChanged": BEGAN,
}

COMBINATIONS: list[tuple[str, LLMServiceStatus, dict[str, str]]] = [
    (
        "another client changes the pod template again and again, so that each rollout begins anew",
        seen(OLD_SERVES, of_revision("r2", pod(container=RUNNING), BEGAN),
             result=Result(conflicts=(CONTESTED,), conflict_of_pods=CONTESTED), ready=1, total=2),
        {
            "Ready": "True RollingOut",
            "Degraded": "True FieldConflict Deployment good keeps being changed",
            "Progressing": "False FieldConflict Deployment good keeps being changed",
            "Reconciling": "False FieldConflict stalled: Deployment good keeps being changed",
            "Stalled": "True FieldConflict Deployment good keeps being changed",
        },
    ),
    (
        "another client's pod template is rolled out, until it is set back",
        seen(pod(container=SERVING), result=Result(conflicts=(CONTESTED,), conflict_of_pods=CONTESTED), ready=1),
        {
            "Ready": "True Serving",
            "Progressing": "False FieldConflict",
            "Reconciling": "False FieldConflict",
            "Stalled": "True FieldConflict",
        },
    ),
    (
        "another client changes a field that no pod has",
        seen(pod(container=SERVING), result=Result(conflicts=(CONTESTED,)), ready=1),
        {"Degraded": "True FieldConflict", "Progressing": "False Deployed", "Stalled": "False AsExpected"},
    ),
    (
        "admission changes the replicas",
        seen(pod(container=SERVING), of={"replicas": 2}, ready=1),
        {
            "Ready": "True FewerReplicas",
            "Degraded": "True FieldConflict",
            "Progressing": "False FieldConflict Deployment good has 1 replica though",
            "Stalled": "True FieldConflict",
        },
    ),
    (
        "changes are held back",
        seen(pod(container=SERVING), of=PAUSED, ready=1, updated=0),
        {
            "Ready": "True RollingOut",
            "Progressing": "False Paused",
            "Reconciling": "False Paused",
            "Stalled": "False Paused spec.rollout.paused is true",
        },
    ),
    (
        "changes are held back while the pods that there are fail",
        seen(CRASHES, of=PAUSED),
        {
            "Ready": "False CrashLoop",
            "Progressing": "False Paused",
            "Reconciling": "False CrashLoop",
            "Stalled": "True CrashLoop",
        },
    ),
    (
        "changes are held back while the pods that there are find no node",
        seen(no_node(BEGAN), of=PAUSED),
        {"Ready": "False Unschedulable", "Progressing": "False Paused", "Stalled": "True Unschedulable"},
    ),
    (
        "a rollout was paused because its new pod fails, and the old one serves",
        seen(OLD_SERVES, NEW_CRASHES, of=PAUSED, ready=1, total=2),
        {"Ready": "True RollingOut", "Degraded": "True CrashLoop", "Stalled": "False Paused"},
    ),
    (
        "a new pod fails at each start",
        seen(OLD_SERVES, NEW_CRASHES, ready=1, total=2),
        {
            "Ready": "True RollingOut 1 replica serves while 0 of 1 replicas",
            "Degraded": "True CrashLoop",
            "Progressing": "False NewPodFails 0 of 1 replicas of the newest revision are ready; pod good-r2 keeps fail",
            "RolloutBlocked": "True NewPodFails",
            "Stalled": "True CrashLoop",
        },
    ),
    (
        "it is being deleted, and its pods have ended",
        seen(result=Result(ends=ENDS), total=0, updated=0),
        {
            "Ready": "False BeingDeleted",
            "Available": "False BeingDeleted",
            "Progressing": "False BeingDeleted",
            "Reconciling": "False BeingDeleted",
            "Stalled": "False AsExpected",
        },
    ),
    (
        "it is being deleted, and another client has changed the replicas since, which nothing sets back any more",
        seen(pod(container=SERVING), result=Result(ends=ENDS), of={"replicas": 2}, ready=1),
        {
            "Ready": "True FewerReplicas",
            "Degraded": "False AsExpected nothing is wrong",
            "Progressing": "False BeingDeleted",
            "Reconciling": "False BeingDeleted",
            "Stalled": "False AsExpected",
        },
    ),
    (
        "it is suspended, and pods that were evicted before are still listed",
        seen(FAILED, {**FAILED, "metadata": {**FAILED["metadata"], "name": "good-2"}}, of={"suspend": True}, wanted=0,
             total=0, updated=0),
        {
            "Ready": "False Suspended",
            "Degraded": "False AsExpected nothing is wrong",
            "RolloutBlocked": "False NotBlocked",
            "Stalled": "False AsExpected",
        },
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("status", "expected"), [row[1:] for row in COMBINATIONS], ids=[row[0] for row in COMBINATIONS]
)
def test_the_conditions_agree(status: LLMServiceStatus, expected: dict[str, str]) -> None:
    found = states(status)
    for kind, begins in expected.items():
        assert found[kind].startswith(begins), (kind, found[kind])


def test_all_conditions_name_the_same_pod_in_whatever_order_the_watch_reports_several() -> None:
    """Otherwise an operator that follows would write each status once more."""
    old, new = of_revision("r1", pod(container=SERVING)), of_revision("r2", CRASHES, BEGAN)
    several = [{**new, "metadata": {**new["metadata"], "name": name, "namespace": "llm"}} for name in "ba"]
    before = {**new, "metadata": {**new["metadata"], "name": "c", "creationTimestamp": "2026-01-01T00:00:05Z"}}
    found = []
    for pods in ([before, *several, old], [old, *reversed(several), before]):
        indexes = {LLMSERVICE.plural: {}, POD.plural: {("llm", "good"): pods}}
        there = observe(("llm", "good"), indexes).pods
        found.append(states(seen(*there, of={"replicas": 3}, wanted=3, ready=1, total=4, updated=3)))
    assert found[0] == found[1]
    for kind in ("Degraded", "Progressing", "RolloutBlocked", "Reconciling", "Stalled"):
        assert "pod a " in found[0][kind]


PODS = {
    "none": [],
    "serves": [pod(container=SERVING)],
    "loads": [pod(container=RUNNING)],
    "crashed once": [pod(container=crashed(1))],
    "crashes": [CRASHES],
    "has no image": [pod(container=waiting("ErrImagePull", "no such image"))],
    "finds no node": [no_node(BEGAN)],
    "is gated": [no_node(BEGAN, "SchedulingGated")],
    "has no scheduler": [unseen(BEGAN)],
    "was evicted": [FAILED],
    "is replaced": [OLD_SERVES, of_revision("r2", pod(container=RUNNING), BEGAN)],
    "is not replaced": [OLD_SERVES, NEW_CRASHES],
}
RESULTS = {
    "ok": Result(),
    "refused": Result(refused=REFUSED),
    "unserved": Result(unserved=REFUSED),
    "contested": Result(conflicts=(CONTESTED,), conflict_of_pods=CONTESTED),
    "ends": Result(ends=ENDS),
}
SPECS: dict[str, dict[str, Any]] = {"runs": {}, "is paused": PAUSED, "is suspended": {"suspend": True}}
_STOPPED = ("Suspended", "Paused", "BeingDeleted")


@pytest.mark.parametrize("refused", [False, True], ids=["", "by a quota"])
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("result", RESULTS)
def test_no_condition_contradicts_another_whatever_the_pods_do(result: str, spec: str, refused: bool) -> None:
    suspended = spec == "is suspended"
    for (name, pods), counted in itertools.product(PODS.items(), (False, True)):
        there = [] if suspended and counted else [each for each in pods if each["status"].get("phase") != "Failed"]
        ready = sum(each["status"].get("containerStatuses", [{}])[0].get("ready", False) for each in there)
        counts = {"total": len(there), "updated": min(len(there), 1), "ready": ready if counted else 0}
        wanted, quota = int(not suspended), QUOTA if refused else {}
        status = seen(*pods, result=RESULTS[result], of=SPECS[spec], wanted=wanted, **counts, **quota)
        assert not contradictions(states(status)), (name, counted, states(status))


def contradictions(found: dict[str, str]) -> list[str]:
    """What contradicts itself in the conditions of one status."""

    def holds(kind: str, *begins: str) -> bool:
        return found[kind].startswith(begins)

    stopped = holds("Ready", *(f"False {each}" for each in _STOPPED))
    nothing_wrong = found["Degraded"] == "False AsExpected nothing is wrong"
    rules = {
        "stalled and on its way": holds("Stalled", "True") and holds("Reconciling", "True"),
        "as it should be and not ready": holds("Reconciling", "False Deployed") and not holds("Ready", "True")
        and not stopped,
        "not ready, and no reason to wait or to act": holds("Ready", "False") and holds("Reconciling", "False")
        and holds("Stalled", "False AsExpected") and not stopped,
        "stalled, and nothing wrong": holds("Stalled", "True") and nothing_wrong,
        "blocked, and nothing wrong": holds("RolloutBlocked", "True") and nothing_wrong,
        "rolled out and blocked": holds("Progressing", "False Deployed") and holds("RolloutBlocked", "True"),
        "its pods keep it from being reached and the rollout goes on": holds("Stalled", "True")
        and not holds("Stalled", "True ApplyFailed") and holds("Progressing", "True Deploying"),
    }  # fmt: skip
    return [rule for rule, broken in rules.items() if broken]
