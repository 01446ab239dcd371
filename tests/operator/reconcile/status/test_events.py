"""Events: written once for each transition, counted when repeated, and never an obstacle to reconciling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from octavo_operator.api.conditions import BAD_STATUS, ConditionType, Reason
from octavo_operator.api.status import Condition
from octavo_operator.reconcile.api_requests.api_error import ApiError
from octavo_operator.reconcile.observation.observe import Observation
from octavo_operator.reconcile.pods.pod_view import view
from octavo_operator.reconcile.rollout.rollout import rollout_state
from octavo_operator.reconcile.status.events import Recorder, Transition, transitions
from octavo_operator.reconcile.status.summarize import Result, summarize
from tests.operator.reconcile.status.test_summarize import (
    IMAGE,
    NO_GPU,
    SERVING,
    deployment,
    exited,
    pod,
    service,
    summary,
)

NOW = "2026-01-01T00:00:00Z"
REGARDING = {"name": "good", "namespace": "llm", "uid": "u1"}
WARNING = Transition("Warning", "CrashLoop", "pod good-1 ended with exit code 139")


NO_RIGHT = ApiError(403, "Forbidden", "no")
ENDS = ApiError(403, "Forbidden", "it is being terminated", causes=frozenset({"NamespaceTerminating"}))


class Server:
    """Keeps events by name, as the API server does."""

    def __init__(self) -> None:
        self.events: dict[str, dict[str, Any]] = {}
        self.counts: dict[str, int] = {}
        self.refuses: ApiError | None = None

    async def create_event(self, event: dict[str, Any]) -> bool:
        if self.refuses:
            raise self.refuses
        name = event["metadata"]["name"]
        known = name in self.events
        self.events.setdefault(name, event)
        self.counts.setdefault(name, 1)
        return not known

    async def repeat_event(self, namespace: str, name: str, now: str) -> None:
        self.counts[name] += 1


def events_of(*statuses: Any) -> list[tuple[str, str]]:
    """Type and reason of each event in a life whose statuses were these."""
    found, before = [], {}
    for status in statuses:
        after = status.as_object()
        found += [(change.type, change.reason) for change in transitions(before, after)]
        before = after
    return found


FIRST = summary()
RUNS = summary(pod(container=SERVING), children=deployment(ready=1))
CRASHED = summary(pod(container=exited(139)), children=deployment())
WAITS = summary(pod(**NO_GPU), children=deployment())


def test_a_service_that_begins_to_serve_gets_one_event() -> None:
    assert events_of(FIRST, RUNS, RUNS) == [("Normal", "Serving")]


def test_a_load_that_fails_is_reported_once_with_its_cause_and_so_is_its_end() -> None:
    assert events_of(FIRST, CRASHED, CRASHED, RUNS) == [
        ("Warning", "CrashLoop"),
        ("Normal", "Serving"),
        ("Normal", "AsExpected"),
    ]


def test_waiting_for_a_gpu_is_a_warning() -> None:
    assert events_of(WAITS) == events_of(FIRST, WAITS) == [("Warning", "WaitingForGPU")]


def test_going_in_place_is_reported() -> None:
    def blocked(status: str, reason: Reason) -> dict[str, Any]:
        found = Condition(
            type=ConditionType.ROLLOUT_BLOCKED, status=status, reason=reason, message=f"about {reason}",
            observed_generation=1, last_transition_time="2026-01-01T00:00:00Z",
        )  # fmt: skip
        return {"conditions": [found.as_object()]}

    life = [
        blocked("False", Reason.NOT_BLOCKED),
        blocked("True", Reason.NO_GPU_FOR_SURGE),
        blocked("False", Reason.WENT_IN_PLACE),
        blocked("False", Reason.NOT_BLOCKED),
    ]
    changes = [
        change for before, after in zip([{}, *life], life, strict=False) for change in transitions(before, after)
    ]
    assert [(each.type, each.reason) for each in changes] == [
        ("Warning", "NoGPUForSurge"),
        ("Normal", "WentInPlace"),
        ("Normal", "NotBlocked"),
    ]


@pytest.mark.parametrize("letter", ["x", "é", "語"])
async def test_an_event_says_of_what_it_is_and_fits_the_api(letter: str) -> None:
    server = Server()
    await Recorder(server).record(REGARDING, [Transition("Warning", "CrashLoop", letter * 5000)], NOW)
    (event,) = server.events.values()
    assert event["regarding"] == {"apiVersion": "octavo.dev/v1alpha1", "kind": "LLMService", **REGARDING}
    assert (event["type"], event["reason"]) == ("Warning", "CrashLoop")
    assert event["note"].strip(letter) == "…"
    assert 1021 < len(event["note"].encode()) <= 1024  # the API server counts bytes
    assert event["metadata"]["namespace"] == "llm"
    assert event["eventTime"] == "2026-01-01T00:00:00.000000Z"


def test_a_pod_that_fails_in_a_rollout_is_one_event_with_the_cause_and_one_that_the_rollout_is_held_back() -> None:
    old, new = pod("old", container=SERVING, revision="r1"), pod("new", container=exited(139), revision="r2")
    new["metadata"]["creationTimestamp"] = "2026-01-01T00:00:01Z"
    new["status"]["containerStatuses"][0]["restartCount"] = 2
    children = deployment(ready=1, total=2)
    (live,) = children.values()
    state = rollout_state(service().spec.rollout, live, [view(each, "nvidia.com/gpu") for each in (old, new)], NOW)
    status = summarize(service(), Observation({}, children, (old, new)), IMAGE, Result(rollout=state), NOW)
    changes = transitions({}, status.as_object())
    assert [each.reason for each in changes] == ["CrashLoop", "NewPodFails"]
    assert ["139" in each.note for each in changes] == [True, False]


async def test_the_same_event_is_counted_and_not_reported_more_than_once_a_minute() -> None:
    server, now = Server(), [0.0]
    recorder = Recorder(server, lambda: now[0])
    for _ in range(180):
        await recorder.record(REGARDING, [WARNING], NOW)
        now[0] += 1
    assert list(server.counts.values()) == [3]


async def test_another_replica_counts_on() -> None:
    server = Server()
    for _ in range(2):
        await Recorder(server).record(REGARDING, [WARNING], NOW)
    assert list(server.counts.values()) == [2]


@pytest.mark.parametrize(("refusal", "lines"), [(NO_RIGHT, 1), (ENDS, 0)], ids=["no right", "its namespace ends"])
async def test_an_event_that_cannot_be_written_stops_nothing(
    refusal: ApiError, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server()
    server.refuses = refusal
    await Recorder(server).record(REGARDING, [WARNING], NOW)
    assert server.events == {}
    assert len([each for each in caplog.records if each.levelname == "WARNING"]) == lines


def test_the_docs_name_the_conditions_whose_changes_are_reported() -> None:
    page = (Path(__file__).parents[4] / "docs" / "concepts" / "operator.md").read_text()
    section = page.partition("## Events")[2].partition("##")[0]
    assert {kind for kind in ConditionType if kind in section} == set(BAD_STATUS)
