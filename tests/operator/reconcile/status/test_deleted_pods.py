"""Pods that are deleted before they serve, again and again, are said to be; other ends of pods are not taken for it."""

from __future__ import annotations

from typing import Any

import pytest

from octavo_operator.api.conditions import Reason
from octavo_operator.reconcile.kinds import POD
from octavo_operator.reconcile.observation.sources import Sources
from octavo_operator.reconcile.observation.trimmed import trimmed
from octavo_operator.reconcile.problem import Problem
from octavo_operator.reconcile.reconciler import Reconciler
from octavo_operator.reconcile.status.deleted_pods import DeletedPods
from octavo_operator.render import RenderConfig
from tests.operator.api_server import CHILD, KEY, Server, reconciler, settled
from tests.operator.reconcile.status.test_summarize import RUNNING, pod

BEGAN = "2026-01-01T00:00:00Z"
LATER = "2026-01-01T00:02:00Z"
EVICTED = {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}]}


def loading(number: int, revision: str = "r1", **status: Any) -> dict[str, Any]:
    found = pod(f"good-{number}", revision=revision, **{"container": RUNNING, **status})
    found["metadata"] |= {
        "uid": f"p{number}",
        "namespace": "llm",
        "creationTimestamp": f"2026-01-01T00:01:{number:02}Z",
    }
    return dict(trimmed(POD, found))


def live(replicas: int = 1, template: str = "t1") -> dict[str, Any]:
    return {"spec": {"replicas": replicas}, "template": template}


@pytest.mark.parametrize("replicas", [1, 3])
def test_pods_that_are_deleted_again_and_again_are_reported_until_all_serve(replicas: int) -> None:
    known, most = DeletedPods(), 4 * replicas
    for number in range(most - 1):
        assert not known.note(KEY, live(replicas), [loading(number)], complete=False, now=BEGAN)
    for number in (most, most + 1):
        assert known.note(KEY, live(replicas), [loading(number)], complete=False, now=LATER) == BEGAN
    assert known.note(KEY, live(replicas), [], complete=False, now=LATER) == BEGAN, "the next one is about to be made"
    assert not known.note(KEY, live(replicas), [loading(most + 1)], complete=True, now=LATER)
    assert not known.note(KEY, live(replicas), [loading(most + 2)], complete=False, now=LATER)


@pytest.mark.parametrize("status", [{"phase": "Failed"}, {"container": None, **EVICTED}], ids=["failed", "evicted"])
def test_pods_that_say_themselves_why_they_end_do_not_count(status: dict[str, Any]) -> None:
    known = DeletedPods()
    for number in range(20):
        assert not known.note(KEY, live(), [loading(number)], complete=False, now=BEGAN)
        assert not known.note(KEY, live(), [loading(number, **status)], complete=False, now=BEGAN)


def test_rollouts_and_other_numbers_of_replicas_begin_anew() -> None:
    known = DeletedPods()
    for number in range(20):
        changed = live(template=f"t{number}") if number % 2 else live(template=f"t{number - 1}", replicas=2)
        pods = [loading(number), loading(number + 20, revision=f"r{number}")]
        assert not known.note(KEY, changed, pods, complete=False, now=BEGAN)


def test_pods_that_a_rollout_replaces_do_not_count_for_the_revision_after_them() -> None:
    known, old = DeletedPods(), loading(0, revision="r0")
    for there in ([old], [old, loading(1)], *([loading(number)] for number in (1, 2, 3))):
        assert not known.note(KEY, live(), there, complete=False, now=BEGAN)
    assert not known.note(KEY, live(), [loading(4, revision="r0")], complete=False, now=BEGAN)
    assert known.note(KEY, live(), [loading(5)], complete=False, now=BEGAN), "r1 is counted on, whatever r0 makes"


def ending(found: dict[str, Any]) -> dict[str, Any]:
    return {**found, "metadata": {**found["metadata"], "deletionTimestamp": LATER}}


@pytest.mark.parametrize("seen_before_they_end", [True, False])
def test_pods_of_more_replicas_that_were_asked_for_a_moment_ago_do_not_count(seen_before_they_end: bool) -> None:
    """`kubectl scale` is put back at once, and Kubernetes ends the pods that it has made meanwhile, one by one."""
    known, pods = DeletedPods(), [loading(number) for number in range(8)]
    assert not known.note(KEY, live(replicas=7), pods, complete=False, now=BEGAN)
    if seen_before_they_end:
        assert not known.note(KEY, live(), pods, complete=False, now=BEGAN)
    for left in range(7, 0, -1):
        there = [*pods[:left], *map(ending, pods[left:])]
        assert not known.note(KEY, live(), there, complete=False, now=BEGAN)
    assert not known.note(KEY, live(), [pods[0], *map(ending, pods[1:])], complete=False, now=LATER)
    assert not known.note(KEY, live(), pods[:1], complete=False, now=LATER)


def test_pods_that_end_beside_those_in_their_place_and_failed_ones_that_stay_are_no_surplus() -> None:
    known, failed = DeletedPods(), [loading(number, phase="Failed") for number in range(30, 40)]
    for number in range(4):
        there = [loading(number), *map(ending, map(loading, range(number))), *failed]
        assert bool(known.note(KEY, live(), there, complete=False, now=BEGAN)) is (number == 3)


async def see(operator: Reconciler, server: Server, *pods: dict[str, Any]) -> str:
    """The reason of the condition Degraded once the operator has seen these pods."""
    server.indexes[POD.plural][KEY] = list(pods)
    await operator.reconcile(KEY)
    return server.reason("Degraded")


def scale(server: Server, replicas: int) -> None:
    server.live["Deployment"]["spec"]["replicas"] = replicas
    server.indexes["deployments"][KEY] = [trimmed(CHILD["Deployment"], server.live["Deployment"])]


async def with_deleted_pods(**spec: Any) -> tuple[Server, Reconciler]:
    """A server that has four pods deleted of which the last is there, and the operator that has said so."""
    server = Server(**spec)
    operator = await settled(server)
    scale(server, 1)
    for number in range(4):
        said = await see(operator, server, loading(number))
    assert said == "PodsDeleted"
    return server, operator


async def test_the_status_names_what_helps() -> None:
    server, _ = await with_deleted_pods()
    sentence = server.condition("Degraded")["message"]
    for kind in ("Progressing", "Reconciling", "Stalled"):
        assert server.reason(kind) == "PodsDeleted", "a person has to stop it"
    assert sentence.startswith("pods are deleted again and again since 20") and "stop what deletes them" in sentence


async def test_an_operator_that_follows_says_the_same_and_counts_on() -> None:
    server, _ = await with_deleted_pods()
    operator, before = reconciler(server), server.service["status"]
    server.writes.clear()
    assert await see(operator, server, loading(3)) == "PodsDeleted"
    assert "LLMService/status" not in server.writes
    for pods in ([], [loading(4)], [loading(5)]):
        assert await see(operator, server, *pods) == "PodsDeleted"
    assert server.service["status"]["disruptions"] == before["disruptions"]


async def test_an_operator_that_follows_between_two_pods_says_the_same() -> None:
    """Without a pod, the status that it takes over from names no revision."""
    server, operator = await with_deleted_pods()
    assert await see(operator, server) == "PodsDeleted"
    assert "revision" not in server.service["status"]
    operator = reconciler(server)
    for pods in ([], [loading(4)], [loading(5)]):
        assert await see(operator, server, *pods) == "PodsDeleted"


@pytest.mark.parametrize("follows", [False, True])
async def test_a_sentence_that_the_operator_takes_back_does_not_come_back(follows: bool) -> None:
    """The fourth pod turns out to have failed by itself: three were deleted."""
    server, operator = await with_deleted_pods()
    if follows:
        operator = reconciler(server)
        assert await see(operator, server, loading(3)) == "PodsDeleted"
    assert await see(operator, server, loading(3, phase="Failed")) != "PodsDeleted"
    assert await see(operator, server) != "PodsDeleted"
    assert "disruptions" not in server.service["status"]
    assert await see(operator, server, loading(5)) == "PodsDeleted", "four were"


@pytest.mark.parametrize("follows", [False, True])
async def test_a_count_that_begins_anew_takes_the_sentence_back(follows: bool) -> None:
    server, operator = await with_deleted_pods(autoscaling={"minReplicas": 1, "maxReplicas": 8})
    scale(server, 2)
    operator = reconciler(server) if follows else operator
    assert await see(operator, server, loading(3)) == "AsExpected"
    assert await see(operator, server, loading(3), loading(4)) == "AsExpected"


async def test_pods_whose_labels_another_client_changes_are_not_deleted() -> None:
    """They leave their ReplicaSet, which makes others: `released_pods` says so."""
    server, _ = await with_deleted_pods()
    released = Problem(Reason.RELEASED_POD, "pod good-0 runs outside of Deployment good")
    sources = Sources(server.indexes, foreign_problems={KEY: (released,)})
    assert await see(Reconciler(server, sources, RenderConfig("engine:1")), server, loading(4)) == "ReleasedPod"
    assert server.condition("Degraded")["message"] == released.message
    assert server.condition("Stalled")["message"] == released.message
