"""Pods that were preempted or evicted: the status says so until there are others in their place."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from octavo_operator.api.status import EndedPodStatus
from octavo_operator.reconcile.api_requests.api_error import ApiError
from octavo_operator.reconcile.kinds import POD, Kind
from octavo_operator.reconcile.observation.trimmed import trimmed
from octavo_operator.reconcile.status.disruptions import Disruptions, ended_problems
from tests.operator.api_server import KEY, SERVING_POD, Server, reconciler, settled, with_pods
from tests.operator.bad_llmservices import merged

AT = "2026-01-01T00:05:00Z"
WAITING_POD = {
    "metadata": {"name": "good-2", "namespace": "llm", "uid": "p2", "creationTimestamp": AT},
    "status": {
        "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "lastTransitionTime": AT,
             "message": "0/1 nodes are available: 1 Insufficient cpu."},
        ]
    },
}  # fmt: skip


def preempted(
    name: str = "good-1", uid: str = "p1", reason: str = "PreemptionByScheduler", ready: str = "True"
) -> dict[str, Any]:
    """A pod as the scheduler ends it, or as something else does for this reason."""
    target = {"type": "DisruptionTarget", "status": "True", "reason": reason, "lastTransitionTime": AT}
    known = {"name": name, "uid": uid, "deletionTimestamp": AT}
    conditions = [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": ready}, target]
    ended = {"metadata": known, "spec": {"nodeName": "n1"}, "status": {"conditions": conditions}}
    return dict(trimmed(POD, merged(SERVING_POD, ended)))


BY_UID = "ef954f59-5c16-4b8e-82d3-0df40aaf3c8c"
SCHEDULERS_EVENT = {"reason": "Preempted", "note": f"Preempted by pod {BY_UID} on node n1"}


class Events:
    """The scheduler's Events, which name the pod for which others were ended."""

    def __init__(self, by: str = "", allowed: bool = True) -> None:
        self.by = by
        self.place = "spec.nodeName=n1"
        self.allowed = allowed
        self.fails = False
        self.may_list_all_pods = True
        self.asked: list[str] = []

    async def may(self, verb: str, kind: Kind, namespace: str) -> bool:
        return self.may_list_all_pods if kind is POD and not namespace else self.allowed

    async def list_selected(
        self, kind: Kind, namespace: str, selector: str, *, metadata_only: bool = False, fields: str = ""
    ) -> list[dict[str, Any]]:
        self.asked.append(f"{kind.name} {namespace} {fields}")
        if self.fails:
            raise ApiError(503, "x", "try later")
        if kind is POD:
            found = {"namespace": "other", "name": self.by, "uid": BY_UID}
            return [{"metadata": found}] if self.by and fields == self.place else []
        return [SCHEDULERS_EVENT] if self.by else []


async def said(known: Disruptions, events: Events, *pods: dict[str, Any], complete: bool = False, now: str = AT) -> str:
    return "; ".join(each.message for each in ended_problems(await known.note(events, KEY, pods, complete, now)))


async def test_the_pod_for_which_another_was_ended_is_named_once_its_event_is_there() -> None:
    known, events = Disruptions(), Events()
    events.fails = True
    first = await said(known, events, preempted())
    assert "pod good-1 on node n1 was preempted at 2026-01-01T00:05:00Z to make room for a pod of a higher" in first
    assert "--field-selector reason=Preempted" in first and "spec.scheduling.priorityClassName" in first
    events.fails, events.by = False, "important"
    named = await said(known, events)
    assert "to make room for pod other/important, which has a higher priority" in named
    assert events.asked[-2:] == ["Event llm regarding.uid=p1,reason=Preempted", "Pod  spec.nodeName=n1"]
    asked = len(events.asked)
    assert await said(known, events) == named
    assert len(events.asked) == asked, "it is known"


async def test_a_pod_that_is_about_to_get_the_room_is_named_and_otherwise_its_uid() -> None:
    events = Events("important")
    events.place = "status.nominatedNodeName=n1"
    assert "for pod other/important, which" in await said(Disruptions(), events, preempted())
    events.place, known = "nowhere", Disruptions()
    assert f"to make room for the pod of uid {BY_UID}, which" in await said(known, events, preempted())
    events.fails = True
    assert f"to make room for the pod of uid {BY_UID}, which" in await said(known, events)
    events.fails, events.place = False, "status.nominatedNodeName=n1"
    assert "for pod other/important, which" in await said(known, events), "it is looked for again"
    events.place = "nowhere"
    events.may_list_all_pods, asked = False, len(events.asked)
    assert f"the pod of uid {BY_UID}, which" in await said(Disruptions(), events, preempted())
    assert events.asked[asked:] == ["Event llm regarding.uid=p1,reason=Preempted"]


async def test_what_was_preempted_is_forgotten_when_all_replicas_are_there() -> None:
    known, events = Disruptions(), Events("important")
    assert await said(known, events, preempted(), complete=True), "its Deployment has not noticed yet"
    assert await said(known, events)
    assert not await said(known, events, complete=True)
    assert not await said(known, events)


async def test_without_the_right_to_list_events_nothing_is_asked() -> None:
    known, events = Disruptions(), Events("important", allowed=False)
    assert "reason=Preempted" in await said(known, events, preempted())
    assert events.asked == []


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("EvictionByEvictionAPI", "evicted through the API, as a drain, a descheduler"),
        ("DeletionByTaintManager", "evicted for a taint of the node"),
        ("TerminationByKubelet", ""),  # such a pod stays, and says more itself
        ("DeletionByPodGC", ""),
    ],
)
async def test_pods_that_are_evicted_again_and_again_before_they_serve_are_named(reason: str, words: str) -> None:
    known, events = Disruptions(), Events()
    loading = [preempted(f"good-{number}", f"p{number}", reason, ready="False") for number in range(2)]
    assert not await said(known, events, loading[0]), "one may be a drain"
    message = await said(known, events, loading[1])
    assert ("pods are ended before they serve, such as pod good-0 on node n1 at" in message) is bool(words)
    assert words in message and events.asked == []
    more = preempted("good-9", "p9", reason, ready="False")
    assert await said(known, events, more) == message, "it stays the same while more are evicted"
    assert not await said(known, events, complete=True)


async def test_pods_that_have_served_may_be_evicted() -> None:
    served = [preempted(f"good-{number}", f"p{number}", "EvictionByEvictionAPI") for number in range(9)]
    known = Disruptions()
    assert not await said(known, Events(), *served)
    ending = [preempted(f"good-{number}", f"p{number}", "EvictionByEvictionAPI", "False") for number in range(9)]
    assert not await said(known, Events(), *ending), "they were ready when they were evicted"


async def test_many_that_were_preempted_make_one_sentence() -> None:
    pods = [preempted(f"good-{number}", f"p{number}") for number in range(99)]
    message = await said(Disruptions(), Events("important"), *pods)
    assert message.count("was preempted at") == 3 and "so were others before" in message


async def test_events_are_asked_for_the_pods_that_are_named_and_no_longer_than_one_may_still_come() -> None:
    known, events = Disruptions(), Events()
    pods = [preempted(f"good-{number}", f"p{number}") for number in range(9)]
    first = await said(known, events, *pods)
    assert events.asked == [f"Event llm regarding.uid=p{number},reason=Preempted" for number in (6, 7, 8)]
    for now, asked in (("2026-01-01T00:06:59Z", 6), ("2026-01-01T00:07:00Z", 6), ("2026-01-01T01:00:00Z", 6)):
        assert await said(known, events, now=now) == first
        assert len(events.asked) == asked, now
    assert await said(known, Events("important"), preempted("good-9", "p9"), now="2026-01-01T01:00:00Z") != first


async def test_what_is_known_outlasts_a_request_that_is_cancelled() -> None:
    """As when the watches are opened again: by the next time the pod may be gone."""

    class Hanging(Events):
        async def may(self, verb: str, kind: Kind, namespace: str) -> bool:
            raise asyncio.CancelledError

    known = Disruptions()
    with pytest.raises(asyncio.CancelledError):
        await said(known, Hanging(), preempted())
    assert "was preempted at" in await said(known, Events())


async def test_the_status_says_it_until_another_pod_serves() -> None:
    server = Server()
    operator = await settled(server)
    with_pods(server, ready=1)
    await operator.reconcile(KEY)
    assert server.reason("Ready") == "Serving"
    server.events_of_pods = [SCHEDULERS_EVENT]
    server.all_pods = [{"metadata": {"namespace": "other", "name": "important", "uid": BY_UID}}]
    server.indexes[POD.plural][KEY] = [preempted(), trimmed(POD, WAITING_POD)]
    await operator.reconcile(KEY)
    with_pods(server, ready=0)
    server.indexes[POD.plural][KEY] = [trimmed(POD, WAITING_POD)]
    await operator.reconcile(KEY)
    assert (server.reason("Ready"), server.reason("Degraded")) == ("Unschedulable", "Preempted")
    assert "pod good-1 on node n1 was preempted" in server.condition("Degraded")["message"]
    assert "pod other/important, which has a higher priority" in server.condition("Degraded")["message"]
    assert any((event["type"], event["reason"]) == ("Warning", "Preempted") for event in server.events)
    operator = reconciler(server)
    server.writes.clear()
    await operator.reconcile(KEY)
    assert "LLMService/status" not in server.writes, "an operator that has just started says the same"
    with_pods(server, ready=1)
    await operator.reconcile(KEY)
    assert (server.reason("Ready"), server.reason("Degraded")) == ("Serving", "AsExpected")
    assert "disruptions" not in server.service["status"]


async def test_an_operator_that_follows_goes_on_from_what_the_status_holds() -> None:
    """Each sentence stays the same, also while the pods are still there, and then goes on as if nothing had been."""
    known, events = Disruptions(), Events("important")
    many = [preempted(f"good-{number}", f"p{number}") for number in range(9)]
    evicted = [preempted(f"good-{number}", f"e{number}", "EvictionByEvictionAPI", ready="False") for number in range(5)]
    stored = await known.note(events, KEY, [*many, *evicted], complete=False, now=AT)
    problems, follower, asked = ended_problems(stored), Disruptions(), len(events.asked)
    assert [each.reason for each in problems] == ["Preempted", "Evicted"]
    assert len(stored) == 6, "only as many as the sentences need"
    follower.restore(KEY, [type(each).model_validate(each.as_object()) for each in stored], AT)
    for pods in ([], [*many[-4:], *evicted[:2]], []):
        assert await follower.note(events, KEY, pods, complete=False, now=AT) == stored
    assert len(events.asked) == asked, "all names are known"
    last = preempted("good-9", "p9")
    for each in (known, follower):
        problems = ended_problems(await each.note(events, KEY, [last], complete=False, now=AT))
        assert "pod good-9 on node" in problems[0].message and "pod good-6 " not in problems[0].message
    assert await follower.note(events, KEY, [], complete=True, now=AT) == []
    assert await follower.note(events, KEY, [], complete=False, now=AT) == [], "it is read once"


async def test_causes_of_another_version_of_the_operator_are_left_out() -> None:
    follower = Disruptions()
    follower.restore(KEY, [EndedPodStatus(uid="p1", name="good-1", cause="AnotherOne")], AT)
    assert await follower.note(Events(), KEY, [], complete=False, now=AT) == []
