"""Pods that are deleted before they serve, again and again, are said to be; other ends of pods are not taken for it."""

from __future__ import annotations

from typing import Any

import pytest

from octavo_operator.reconcile.kinds import POD
from octavo_operator.reconcile.observation.trimmed import trimmed
from octavo_operator.reconcile.status.deleted_pods import DeletedPods
from tests.operator.api_server import CHILD, KEY, Server, settled
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
        (found,) = known.note(KEY, live(replicas), [loading(number)], complete=False, now=LATER)
        assert found.message.startswith(f"pods are deleted again and again since {BEGAN}, before")
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


async def test_the_status_names_what_helps() -> None:
    server = Server()
    operator = await settled(server)
    server.live["Deployment"]["spec"]["replicas"] = 1
    server.indexes["deployments"][KEY] = [trimmed(CHILD["Deployment"], server.live["Deployment"])]
    for number in range(5):
        server.indexes[POD.plural][KEY] = [loading(number)]
        await operator.reconcile(KEY)
    assert server.reason("Degraded") == "PodsDeleted"
    assert "stop what deletes them" in server.condition("Degraded")["message"]
