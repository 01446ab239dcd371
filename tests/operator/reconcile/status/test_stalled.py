"""The status of an LLMService as GitOps tools read it: kstatus' rules, applied to the conditions of many situations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from octavo_operator.api.conditions import ConditionType, Reason
from octavo_operator.api.status import LLMServiceStatus
from octavo_operator.reconcile.kinds import LLMSERVICE, POD
from octavo_operator.reconcile.observation.observe import Observation, observe
from octavo_operator.reconcile.observation.trimmed import trimmed
from octavo_operator.reconcile.pods.failed_pods import failing_again
from octavo_operator.reconcile.pods.pod_view import view, views
from octavo_operator.reconcile.pods.stuck_terminating import end_patience
from octavo_operator.reconcile.problem import Problem
from octavo_operator.reconcile.rollout.rollout import RolloutState, rollout_state
from octavo_operator.reconcile.status.facts import Result
from octavo_operator.reconcile.status.stalled import patience_seconds
from octavo_operator.reconcile.status.summarize import invalid_status, summarize
from octavo_operator.reconcile.status.unobserved import CONTROLLER_PATIENCE_SECONDS, UnobservedChanges
from octavo_operator.reconcile.timestamps import patience_left
from tests.operator.reconcile.status.test_summarize import (
    RUNNING,
    SERVING,
    condition,
    deployment,
    exited,
    pod,
    service,
    waiting,
)

LATER = "2026-01-01T00:01:00Z"


def seen(*pods: dict[str, Any], result: Result | None = None, of: Any = None, **counts: Any) -> LLMServiceStatus:
    """The status a minute after the pods were made."""
    return summarize(of or service(), Observation({}, deployment(**counts), pods), "image", result or Result(), LATER)


def kstatus(status: dict[str, Any], generation: int = 3) -> str:
    """Judge a status as sigs.k8s.io/cli-utils/pkg/kstatus does for a kind that it does not know."""
    conditions = {each["type"]: each["status"] for each in status["conditions"]}
    if status["observedGeneration"] != generation:
        return "InProgress"
    if conditions.get("Reconciling") == "True":
        return "InProgress"
    if conditions.get("Stalled") == "True":
        return "Failed"
    return "Current" if conditions.get("Ready", "True") == "True" else "InProgress"


def no_node(since: str, reason: str = "Unschedulable", **more: Any) -> dict[str, Any]:
    unmet = {"type": "PodScheduled", "status": "False", "reason": reason, "lastTransitionTime": since}
    return pod(conditions=[{**unmet, "message": "0/1 nodes are available: 1 Insufficient memory."}], **more)


def unseen(since: str, scheduler: str = "default-scheduler") -> dict[str, Any]:
    """A pod that its scheduler has not looked at."""
    found = pod(conditions=[])
    found["metadata"]["creationTimestamp"] = since
    return {**found, "spec": {"schedulerName": scheduler}}


def not_started(since: str) -> dict[str, Any]:
    """A pod that its node has not started."""
    unmet = {"type": "PodReadyToStartContainers", "status": "False", "lastTransitionTime": since}
    scheduled = {"type": "PodScheduled", "status": "True"}
    return pod(conditions=[scheduled, unmet], container=waiting("ContainerCreating"))


def unstarted(since: str, reason: str = "CreateContainerError") -> dict[str, Any]:
    """A pod whose container its node cannot start."""
    return {**pod(container=waiting(reason, "no such command")), "statusChanged": since}


def crashed(restarts: int, code: int = 139) -> dict[str, Any]:
    return {**exited(code), "restartCount": restarts}


REFUSED = Problem(Reason.APPLY_FAILED, "the API server refuses it")
QUOTA = {"conditions": [{"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"}]}
LATE = {"conditions": [{"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}]}
BLOCKED = RolloutState(blocked=True, problem=Problem(Reason.NO_ROOM_FOR_SURGE, "no room"))


def replacing(since: str) -> LLMServiceStatus:
    """A rollout that is blocked since the new pod finds no node beside the old one."""
    new = no_node(since, name="b", revision="r2")
    new["metadata"]["creationTimestamp"] = since
    return seen(pod(container=SERVING), new, result=Result(rollout=BLOCKED), ready=1, total=2)


SITUATIONS: list[tuple[str, LLMServiceStatus, str]] = [
    ("serves", seen(pod(container=SERVING), ready=1), "Current"),
    ("loads", seen(pod(container=RUNNING)), "InProgress"),
    ("replaces a pod", seen(pod(container=SERVING), pod("b", revision="r2"), ready=1, total=2), "InProgress"),
    ("looks for a node", seen(no_node("2026-01-01T00:00:30Z")), "InProgress"),
    ("finds no node", seen(no_node("2026-01-01T00:00:10Z")), "Failed"),
    ("is new", seen(unseen("2026-01-01T00:00:30Z")), "InProgress"),
    ("has no scheduler", seen(unseen("2026-01-01T00:00:10Z")), "Failed"),
    ("is being started", seen(not_started("2026-01-01T00:00:30Z")), "InProgress"),
    ("is not started", seen(not_started("2026-01-01T00:00:10Z")), "Failed"),
    ("waits at a gate", seen(no_node("2026-01-01T00:00:10Z", "SchedulingGated")), "InProgress"),
    ("crashed once", seen(pod(container=crashed(1))), "InProgress"),
    ("crashes at each start", seen(pod(container=crashed(2))), "Failed"),
    ("was not started at one try", seen(unstarted("2026-01-01T00:00:40Z")), "InProgress"),
    ("cannot be started", seen(unstarted("2026-01-01T00:00:20Z", "RunContainerError")), "Failed"),
    ("cannot be started, by a pod as it is read", seen(pod(container=waiting("CreateContainerError"))), "Failed"),
    ("has a wrong flag", seen(pod(container=crashed(0, 2))), "Failed"),
    ("has no image", seen(pod(container=waiting("ErrImagePull"))), "Failed"),
    ("may make no pod", seen(total=0, updated=0, **QUOTA), "Failed"),
    ("makes room in a quota", seen(total=0, result=Result(rollout=RolloutState(in_place=True)), **QUOTA), "InProgress"),
    ("has no room", seen(pod(container=SERVING), result=Result(rollout=BLOCKED), ready=1, total=2), "Failed"),
    ("has no room yet", replacing("2026-01-01T00:00:30Z"), "InProgress"),
    ("has no room for long", replacing("2026-01-01T00:00:10Z"), "Failed"),
    (
        "is about to make room",
        seen(result=Result(rollout=RolloutState(blocked=True, again=30)), ready=1, total=2),
        "InProgress",
    ),
    ("is late", seen(pod(container=RUNNING), **LATE), "Failed"),
    ("is refused", seen(pod(container=SERVING), result=Result(refused=REFUSED), ready=1), "Failed"),
    ("is paused", seen(pod(container=SERVING), of=service(rollout={"paused": True}), ready=1, updated=0), "Current"),
]


@pytest.mark.parametrize(("status", "judged"), [row[1:] for row in SITUATIONS], ids=[row[0] for row in SITUATIONS])
def test_kstatus_judges_it_so(status: LLMServiceStatus, judged: str) -> None:
    assert kstatus(status.as_object()) == judged


@pytest.mark.parametrize(
    ("scheduler", "words"),
    [
        ("default-scheduler", "check whether kube-scheduler runs"),
        ("nobody", "change schedulerName in spec.podTemplate"),
    ],
)
def test_a_pod_without_a_scheduler_says_which_one_is_meant(scheduler: str, words: str) -> None:
    status = seen(unseen("2026-01-01T00:00:10Z", scheduler))
    ready = next(each for each in status.conditions if each.type is ConditionType.READY)
    assert ready.reason is Reason.NO_SCHEDULER
    assert f"waits for {scheduler}" in ready.message and words in ready.message
    fresh = seen(unseen("2026-01-01T00:00:55Z", scheduler))
    assert all(each.reason is not Reason.NO_SCHEDULER for each in fresh.conditions)


def test_a_pod_that_its_node_cannot_start_says_where_to_look() -> None:
    status = seen({**not_started("2026-01-01T00:00:10Z"), "spec": {"nodeName": "n1"}})
    ready = condition(status, ConditionType.READY)
    assert (ready.status, ready.reason) == ("False", Reason.NO_SANDBOX)
    assert "node n1 has not started pod good-1" in ready.message and "kubectl describe pod good-1" in ready.message
    fresh = seen(not_started("2026-01-01T00:00:35Z"))
    assert all(each.reason is not Reason.NO_SANDBOX for each in fresh.conditions)


def test_a_pod_of_an_old_revision_stalls_nothing() -> None:
    old, new = pod("a", container=crashed(9)), pod("b", container=RUNNING, revision="r2")
    new["metadata"]["creationTimestamp"] = LATER
    assert kstatus(seen(old, new, total=2).as_object()) == "InProgress"
    serves = seen(pod("a", container=SERVING), new, total=2, ready=1)
    found = condition(serves, ConditionType.RECONCILING).message
    assert found == "1 of 1 replicas are of the newest revision, 0 of these are ready"
    leaving = [pod(name, container=SERVING) for name in ("a", "b", "c")]
    found = condition(seen(*leaving, total=3, updated=3, ready=3), ConditionType.RECONCILING).message
    assert found == "1 of 1 replicas are of the newest revision, 1 of these are ready"


def test_an_object_that_is_no_llmservice_has_failed() -> None:
    raw = {"metadata": {"generation": 3}}
    assert kstatus(invalid_status(raw, "it is none", LATER)) == "Failed"


def test_the_next_pass_is_due_when_a_waiting_pod_will_count_as_stalled() -> None:

    waits = [view(no_node(f"2026-01-01T00:00:{second}Z"), "nvidia.com/gpu") for second in ("10", "30")]
    assert patience_seconds(waits, LATER) == [15.0]
    assert patience_seconds(waits, LATER, node_wait=900) == [850.0, 870.0]
    tries = [view(unstarted(f"2026-01-01T00:00:{second}Z"), "nvidia.com/gpu") for second in ("20", "40")]
    assert patience_seconds(tries, LATER) == [10.0]


@pytest.mark.parametrize(("wait", "judged"), [(45, "Failed"), (900, "InProgress")])
def test_where_nodes_are_added_on_demand_a_pod_may_wait_for_one(wait: float, judged: str) -> None:
    observed = Observation({}, deployment(), (no_node("2026-01-01T00:00:00Z"),))
    assert kstatus(summarize(service(), observed, "image", Result(), LATER, wait).as_object()) == judged
    claims = Observation({}, deployment(), (not_started("2026-01-01T00:00:00Z"),))
    assert kstatus(summarize(service(), claims, "image", Result(), LATER, wait).as_object()) == "Failed", "no volume"


@pytest.mark.parametrize("changed", ["2026-01-01T00:00:20Z", "2026-01-01T00:00:40Z"])
def test_one_failure_to_start_a_container_holds_no_rollout_back(changed: str) -> None:
    """What the watch keeps of a pod says when its status last changed."""
    found = unstarted("")
    found["metadata"] |= {"uid": "u", "managedFields": [{"subresource": "status", "time": changed}]}
    pods = [view(trimmed(POD, found), "nvidia.com/gpu")]
    (live,) = deployment().values()
    assert rollout_state(service().spec.rollout, live, pods, LATER).blocked is (changed < "2026-01-01T00:00:31Z")


def test_a_pod_that_fails_is_not_hidden_by_one_that_has_just_begun_to_wait() -> None:
    pods = pod("a", container=crashed(2, 4)), no_node("2026-01-01T00:00:59Z", name="b")
    (live,) = deployment(total=2, updated=2).values()
    views = [view(each, "nvidia.com/gpu") for each in pods]
    state = rollout_state(service().spec.rollout, live, views, LATER)
    assert state.blocked
    status = seen(*pods, result=Result(rollout=state), total=2, updated=2)
    found = next(each for each in status.conditions if each.type is ConditionType.STALLED)
    assert (found.status, found.reason) == ("True", Reason.OUT_OF_MEMORY)


def test_both_conditions_are_always_there() -> None:
    kinds = {each.type for each in seen(pod(container=SERVING), ready=1).conditions}
    assert {ConditionType.RECONCILING, ConditionType.STALLED} <= kinds


@pytest.mark.parametrize(
    ("since", "judged"),
    [("2026-01-01T00:00:10Z", "Failed"), ("2026-01-01T00:00:30Z", "InProgress"), ("", "InProgress")],
    ids=["for long", "just now", "looked at"],
)
def test_a_deployment_that_its_controller_does_not_look_at(since: str, judged: str) -> None:
    (identity, live), *_ = deployment(total=0, updated=0, observedGeneration=1 if since else 2).items()
    observation = Observation({}, {identity: live}, (pod(),), unobserved_since=since)
    found = summarize(service(), observation, "image", Result(), LATER)
    assert kstatus(found.as_object()) == judged
    reasons = {each.type: each.reason for each in found.conditions}
    reported = judged == "Failed"
    messages = {each.type: each.message for each in found.conditions}
    assert ("whether its log names this Deployment" in messages[ConditionType.DEGRADED]) is reported
    for kind in (ConditionType.READY, ConditionType.DEGRADED, ConditionType.STALLED):
        assert (reasons[kind] is Reason.NO_CONTROLLER) is reported
    assert patience_left(since, LATER, CONTROLLER_PATIENCE_SECONDS) == ([15.0] if "00:00:30Z" in since else [])


def test_a_change_is_unobserved_since_the_controller_last_acted() -> None:
    """Neither an autoscaler's change nor the next one of many is an old one."""
    changes, key = UnobservedChanges(), ("llm", "good")

    def noted(generation: int, observed: int, now: str, template: str = "") -> str:
        live = {"metadata": {"generation": generation}, "status": {"observedGeneration": observed}}
        children = {("Deployment", "good"): {**live, "template": template}}
        return changes.note(key, Observation({}, children, (pod(),)), now)

    moments = [noted(2, 1, "a"), noted(3, 1, "b"), noted(4, 3, "c"), noted(4, 4, "d"), noted(5, 4, "e")]
    assert moments == ["a", "a", "c", "", "e"]
    noted(1, 1, "f", template="x")
    assert changes.observed_template(key) == "x"
    assert changes.note(key, Observation({}), "g") == changes.observed_template(key) == "", "the next has nothing of it"


def test_the_time_in_which_pods_are_refused_is_not_counted() -> None:
    """Else a Deployment whose controller is about to make the first pod, as a quota has room again, were reported."""
    changes, failure = UnobservedChanges(), {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"}

    def noted(now: str, *conditions: dict[str, str], pods: tuple[dict[str, Any], ...] = ()) -> str:
        status = {"observedGeneration": 1, "conditions": list(conditions)}
        live = {"metadata": {"generation": 1}, "spec": {"replicas": 1}, "status": status}
        return changes.note(("llm", "good"), Observation({}, {("Deployment", "good"): live}, pods), now)

    assert [noted("a"), noted("b"), noted("c", failure), noted("d"), noted("e")] == ["a", "a", "", "d", "d"]
    assert noted("f", pods=(failed("a", NO_DEVICE),)) == "f", "nor that of pods that fail as fast as they are made"


@pytest.mark.parametrize(
    ("spec", "phase", "reported"),
    [
        ({"replicas": 1}, None, True),
        ({"replicas": 1}, "Failed", True),
        ({"replicas": 1}, "Running", False),
        ({"replicas": 0}, None, False),
        ({"replicas": 1, "paused": True}, None, False),
    ],
    ids=["no pod", "one evicted", "pods", "none wanted", "paused"],
)
def test_a_deployment_whose_pods_nothing_makes(spec: dict[str, Any], phase: str | None, reported: bool) -> None:
    """Its pods were deleted while kube-controller-manager hangs: its counts are still those of before."""
    (identity, live), *_ = deployment(total=1, updated=1, ready=1).items()
    pods = (pod(container=SERVING, phase=phase),) if phase else ()
    observation = Observation({}, {identity: {**live, "spec": spec}}, pods)
    since = UnobservedChanges().note(("llm", "good"), observation, "2026-01-01T00:00:10Z")
    observation = replace(observation, unobserved_since=since)
    found = {each.type: each for each in summarize(service(), observation, "image", Result(), LATER).conditions}
    for kind in (ConditionType.READY, ConditionType.DEGRADED, ConditionType.STALLED):
        assert (found[kind].reason is Reason.NO_CONTROLLER) is reported
    assert ("Deployment good has had no pod since" in found[ConditionType.STALLED].message) is reported


def failed(name: str, message: str, reason: str = "UnexpectedAdmissionError", at: str = LATER) -> dict[str, Any]:
    """A pod that its node has refused, or ended for good."""
    found = pod(name, phase="Failed", reason=reason, message=message)
    return {**found, "spec": {"nodeName": "n1"}, "statusChanged": at}


NO_DEVICE = "Pod was rejected: Allocate failed due to no healthy devices present; cannot allocate nvidia.com/gpu"
DISK_FULL = 'Usage of EmptyDir volume "cache" exceeds the limit "1Gi". '
LOW_DISK = "The node was low on resource: ephemeral-storage. "
FAILED = [
    ([failed("a", NO_DEVICE), failed("b", NO_DEVICE)], "a on node n1 (UnexpectedAdmissionError): Pod was rejected"),
    ([failed("a", DISK_FULL, "Evicted")], "raise spec.cache.size"),
]


@pytest.mark.parametrize(("pods", "words"), FAILED, ids=["refused by nodes", "over a limit of the spec"])
def test_pods_that_fail_one_after_the_other_are_stalled(pods: list[dict[str, Any]], words: str) -> None:
    status = seen(*pods, no_node(LATER, name="c"))
    for kind in (ConditionType.READY, ConditionType.DEGRADED, ConditionType.STALLED):
        found = condition(status, kind)
        assert found.reason == Reason.POD_FAILED
        assert words in found.message
    assert kstatus(status.as_object()) == "Failed"


@pytest.mark.parametrize(
    "pods",
    [
        [failed("a", NO_DEVICE), pod("b", container=RUNNING)],
        [failed("a", NO_DEVICE, at="2025-12-31T22:59:59Z"), failed("b", NO_DEVICE), pod("c", container=RUNNING)],
        [failed("a", NO_DEVICE), failed("b", NO_DEVICE), pod("c", container=RUNNING, revision="r2")],
    ],
    ids=["one", "one lately", "of an old revision"],
)
def test_a_pod_that_failed_once_is_no_fault(pods: list[dict[str, Any]]) -> None:
    pods[-1]["metadata"]["creationTimestamp"] = LATER
    assert condition(seen(*pods), ConditionType.DEGRADED).reason == Reason.AS_EXPECTED


def test_pods_that_replace_failed_ones_of_an_old_revision_are_not_of_the_newest() -> None:
    pods = [failed("a", NO_DEVICE), pod("b", container=RUNNING, revision="r2"), failed("c", NO_DEVICE)]
    for second, each in enumerate(pods):
        each["metadata"]["creationTimestamp"] = f"2026-01-01T00:00:0{second}Z"
    assert condition(seen(*pods), ConditionType.DEGRADED).reason == Reason.AS_EXPECTED


def of_revision(revision: str, second: int, container: dict[str, Any]) -> dict[str, Any]:
    """A pod that was made in this second."""
    found = pod(f"{revision}-{second}", container=container, revision=revision)
    found["metadata"]["creationTimestamp"] = f"2026-01-01T00:00:0{second}Z"
    return found


BOTH_FAIL = [
    [of_revision("r1", 1, crashed(3, 3)), of_revision("r2", 2, crashed(3, 2)), of_revision("r1", 4, crashed(3, 3))],
    [of_revision("r1", 1, crashed(3, 3)), of_revision("r2", 2, crashed(3, 2)), of_revision("r2", 3, crashed(1, 139))],
]


@pytest.mark.parametrize("pods", BOTH_FAIL, ids=["the youngest is of the old revision", "the youngest failed once"])
def test_where_two_revisions_fail_all_conditions_name_the_lasting_failure_of_the_newest(
    pods: list[dict[str, Any]],
) -> None:
    status = seen(*pods)
    kinds = (ConditionType.READY, ConditionType.DEGRADED, ConditionType.STALLED)
    found = [condition(status, kind) for kind in kinds]
    assert [each.reason for each in found] == [Reason.CONFIGURATION_ERROR] * 3
    assert len({each.message for each in found}) == 1
    assert status.revision and status.revision.updated == "r2"


def test_pods_that_failed_are_no_fault_once_another_serves() -> None:
    pods = [failed("a", NO_DEVICE), failed("b", NO_DEVICE), pod("c", container=SERVING)]
    assert condition(seen(*pods, ready=1), ConditionType.DEGRADED).reason == Reason.AS_EXPECTED


def test_a_rollout_whose_pods_fail_one_after_the_other_is_blocked() -> None:
    old, new = pod(container=SERVING, revision="r1"), [failed("b", NO_DEVICE), failed("c", NO_DEVICE)]
    for each in new:
        each["metadata"] |= {"creationTimestamp": LATER, "labels": {"pod-template-hash": "r2"}}
    views = [view(each, "nvidia.com/gpu") for each in (old, *new)]
    live = deployment(ready=1, updated=1, total=2)["Deployment", "good"]
    state = rollout_state(service().spec.rollout, live, views, LATER)
    assert (state.blocked, state.problem.reason) == (True, Reason.NEW_POD_FAILS)
    assert state.problem.message.startswith("one pod after another fails (PodFailed, see condition Degraded); ending")


def test_of_thousands_of_failed_pods_few_are_looked_at_in_a_pass() -> None:
    """A node with a broken device refuses as many in minutes; the cluster keeps 12,500, and each is an event."""
    crowd = []
    for number in range(12_000):
        refused = failed(f"refused-{number}", NO_DEVICE)
        second = f"2026-01-01T{number // 3600:02}:{number // 60 % 60:02}:{number % 60:02}Z"
        labels = {"pod-template-hash": "r1" if number < 7000 else "r2"}
        refused["metadata"] |= {"creationTimestamp": second, "labels": labels}
        crowd.append({**refused, "statusChanged": second})
    ends = failed("ends", NO_DEVICE)
    ends["metadata"] |= {"deletionTimestamp": LATER}
    others = [pod("serves", container=SERVING), ends]
    indexes: dict[str, Any] = {LLMSERVICE.plural: {}, POD.plural: {("llm", "good"): [*crowd, *others]}}
    kept = [each["metadata"]["name"] for each in observe(("llm", "good"), indexes).pods]
    youngest = [f"refused-{number}" for number in range(11_900, 12_000)]
    assert sorted(kept) == sorted(["serves", "ends", "refused-0", "refused-7000", *youngest])


def test_pods_that_fail_after_days_are_noticed_beside_many_that_were_refused_before() -> None:
    """As when the disks of all nodes are full, some hours after one of them had a broken device."""
    crowd = [failed(f"refused-{number}", NO_DEVICE, at="2026-01-01T00:00:00Z") for number in range(200)]
    evicted = [failed(name, LOW_DISK, "Evicted", at="2026-01-01T05:00:00Z") for name in ("served-0", "served-1")]
    for each in crowd:
        each["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    for each in evicted:
        each["metadata"]["creationTimestamp"] = "2025-12-30T00:00:00Z"
    indexes: dict[str, Any] = {LLMSERVICE.plural: {}, POD.plural: {("llm", "good"): [*evicted, *crowd]}}
    pods = views(service(), observe(("llm", "good"), indexes).pods)
    problem = failing_again(pods, "2026-01-01T05:00:10Z")
    assert problem and "served-0 on node n1 (Evicted)" in problem.message


def ending(since: str, **metadata: Any) -> dict[str, Any]:
    found = pod("old", container=SERVING)
    found["metadata"] |= {"deletionTimestamp": since, **metadata}
    return {**found, "spec": {"nodeName": "n1"}}


ENDS = [
    (ending("2026-01-01T00:00:00Z"), "delete pod old --force --grace-period=0, or kubectl delete node n1 where it"),
    (ending("2026-01-01T00:00:00Z", finalizers=["x.example/hold"]), "x.example/hold holds it; remove the finalizer"),
    (ending("2026-01-01T00:00:01Z"), ""),
]


@pytest.mark.parametrize(("old", "words"), ENDS, ids=["lost node", "finalizer", "a moment ago"])
def test_a_pod_that_should_have_ended_long_ago_is_named(old: dict[str, Any], words: str) -> None:
    """It may hold a volume or devices that the pod in its place waits for."""
    found = condition(seen(old, pod("new", container=SERVING), ready=1), ConditionType.DEGRADED)
    assert found.reason == (Reason.POD_STUCK_TERMINATING if words else Reason.AS_EXPECTED)
    assert words in found.message
    assert end_patience([old], LATER) == ([] if words else [1.0])


def test_of_many_pods_that_should_have_ended_three_are_named_the_same_ones_each_time() -> None:
    """As where a lost node had all of them: the message stays short, and leaves room for other problems."""
    many = [ending("2026-01-01T00:00:00Z", name=f"old-{number}") for number in range(40)]
    messages = [condition(seen(*pods), ConditionType.DEGRADED).message for pods in (many, reversed(many))]
    assert messages[0] == messages[1]
    assert [name for name in (f"old-{number}" for number in range(40)) if f"pod {name} should" in messages[0]] == [
        "old-0",
        "old-1",
        "old-10",
    ]
    assert messages[0].endswith("; 37 more pods should have ended by now (kubectl get pods)")
    three = condition(seen(*many[:3]), ConditionType.DEGRADED).message
    assert "more pod" not in three and "pod old-2 should" in three
