"""When a reconcile writes the LLMService's status: once for each change, and seldom where others change it too."""

from __future__ import annotations

import contextlib
import copy
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from octavo_operator.reconcile.api_requests.api_error import ApiError
from octavo_operator.reconcile.kinds import LLMSERVICE
from octavo_operator.reconcile.metrics import OperatorMetrics
from octavo_operator.reconcile.observation.sources import Sources
from octavo_operator.reconcile.observation.trimmed import trimmed
from octavo_operator.reconcile.reconciler import Reconciler
from octavo_operator.reconcile.status import status_writer
from octavo_operator.render import RenderConfig
from tests.operator.api_server import AUTOSCALED, CHILD, KEY, Clock, Server, reconciler, settled
from tests.operator.bad_llmservices import GONE, merged

SHAPELESS = [
    "x",
    [1],
    {"conditions": "x"},
    {"conditions": [1, {}]},
    {"conditions": {"type": "Ready"}},
    {"conditions": [{"type": "Ready", "status": "True"}]},
    *(
        {"conditions": [{"type": "Degraded", "status": "False", "reason": "x", "lastTransitionTime": time}]}
        for time in ("yesterday", "2026-01-01T00:00:00")
    ),
    {"autoscaling": 1, "desiredReplicas": "x"},
]


@pytest.mark.parametrize("status", SHAPELESS, ids=str)
async def test_a_status_that_another_schema_has_let_others_write_is_written_anew(status: Any) -> None:
    server, metrics = Server(), OperatorMetrics()
    server.indexes[LLMSERVICE.plural][KEY] = [trimmed(LLMSERVICE, {**server.service, "status": status})]
    metrics.leads()
    metrics.read_services(server.indexes)
    assert b"octavo_llmservice_desired_replicas" in metrics.render()
    await reconciler(server).reconcile(KEY)
    assert server.reason("Degraded") == "AsExpected"
    assert datetime.fromisoformat(server.condition("Degraded")["lastTransitionTime"]).tzinfo


async def test_conditions_of_other_controllers_cause_no_writes_and_stay() -> None:
    server = Server()
    operator = await settled(server)
    server.others_conditions = [{"type": "CostApproved", "status": "True"}]
    server.service["status"]["conditions"] += server.others_conditions
    await operator.reconcile(KEY)
    assert server.writes == []
    server.service["metadata"]["generation"] = 2
    await operator.reconcile(KEY)
    assert server.writes == ["LLMService/status"]
    assert server.condition("CostApproved")["status"] == "True"


async def test_fields_written_into_the_status_by_hand_are_removed_again() -> None:
    server = Server()
    operator = await settled(server)
    server.others_status = {"autoscaling": {"message": "by hand"}}
    server.service["status"] |= {"readyReplicas": 7, **server.others_status}
    await operator.reconcile(KEY)
    assert server.writes == ["LLMService/status", "merge LLMService/status good"]
    assert "autoscaling" not in server.service["status"]
    assert server.service["status"]["readyReplicas"] == 0
    await operator.reconcile(KEY)
    assert len(server.writes) == 2


class Stamping(Server):
    """A webhook notes in each status when it was written."""

    async def apply(self, manifest: dict[str, Any], subresource: str = "", *rest: Any, **more: Any) -> Any:
        if subresource:
            stamped = {"status": {"url": f"http://{self.version}"}}
            manifest = merged(manifest, stamped)
        return await super().apply(manifest, subresource, *rest, **more)


async def test_a_status_that_a_webhook_changes_at_each_write_is_written_once() -> None:
    """As by one that notes the time: each of our writes would be an event, and that the next write."""

    server = Stamping()
    operator = reconciler(server)
    operator._clock = lambda: "2026-01-01T00:00:00Z"  # the test holds on a machine on which a reconcile takes seconds
    for _ in range(10):
        await operator.reconcile(KEY)
    assert server.writes.count("LLMService/status") == 1
    server.service["status"]["readyReplicas"] = 7  # by hand
    await operator.reconcile(KEY)
    assert server.service["status"]["readyReplicas"] == 0


async def test_the_load_is_written_once_a_minute_also_where_a_webhook_changes_each_status() -> None:
    server = Stamping()
    writer = status_writer.StatusWriter(server)
    for second, left in ((0, None), (15, 45.0), (60, None)):
        status = {"conditions": [], "url": "http://good", "autoscaling": {"queueDepth": str(second)}}
        assert await writer.write(server.service, status, f"2026-01-01T00:{second // 60:02}:{second % 60:02}Z") == left
    assert server.writes.count("LLMService/status") == 2


async def test_a_service_that_is_created_again_and_again_is_no_conflict_over_its_status() -> None:
    """A status that was not there yet was taken for one that another program writes, and a minute passed without."""
    server = Server()
    operator = await settled(server)
    for number in range(5):
        server.version += 1
        metadata = {"uid": f"again-{number}", "resourceVersion": str(server.version)}
        created = merged(server.service, {"metadata": metadata, "status": GONE})
        server.indexes[LLMSERVICE.plural][KEY] = [created]
        await operator.reconcile(KEY)
        assert server.writes.count("LLMService/status") == number + 1


async def test_a_second_operator_that_sees_things_otherwise_begins_no_war_over_the_status() -> None:
    server, now = Server(), 0.0
    operator = await settled(server)
    operator._statuses._clock = lambda: now
    for second in range(120):  # it puts its own opinion back at once
        now = float(second)
        server.version += 1
        server.service["metadata"]["resourceVersion"] = str(server.version)
        server.service["status"]["readyReplicas"] = 7
        again = await operator.reconcile(KEY)
    assert 3 <= len(server.writes) <= 5
    assert again is not None
    assert 0 < again <= 60
    now += 500
    await operator.reconcile(KEY)
    assert server.service["status"]["readyReplicas"] == 0


async def test_a_crd_that_is_older_than_the_operator_stops_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Server-side apply refuses a status with a field that the CRD does not have, as a whole."""
    server = Server()
    server.not_in_crd = {"desiredReplicas", "loading"}
    operator = await settled(server)
    assert "Deployment" in server.live
    assert server.service["status"].keys().isdisjoint(server.not_in_crd)
    assert all(f"the CRD has no field status.{field}: " in caplog.text for field in server.not_in_crd)
    assert server.reason("Degraded") == "AsExpected"
    await operator.reconcile(KEY)
    assert server.writes == []
    server.not_in_crd.clear()  # it is upgraded, which is tried from time to time
    monkeypatch.setattr(status_writer, "UNKNOWN_SECONDS", 0.0)
    await operator.reconcile(KEY)
    assert "desiredReplicas" in server.service["status"]


@pytest.mark.parametrize("status", [404, 409])
async def test_a_status_that_comes_too_late_is_no_failure(status: int) -> None:
    server = Server()
    await reconciler(server).reconcile(KEY)
    server.failures["LLMService/status"] = ApiError(status, "", "gone")
    server.service["spec"]["suspend"] = True
    server.named = merged(server.service, {"metadata": {"uid": "made again"}})
    await reconciler(server).reconcile(KEY)


async def test_a_status_in_conflict_is_written_again_while_the_service_is_there() -> None:
    """Many writers at once have the API server answer so, and no event follows for a status that was not written."""
    server = Server()
    server.failures["LLMService/status"] = ApiError(409, "Conflict", "the object has been modified")
    with pytest.raises(ApiError, match="has been modified"):
        await reconciler(server).reconcile(KEY)
    server.failures.clear()
    await reconciler(server).reconcile(KEY)
    assert server.service["status"]["observedGeneration"] == server.service["metadata"]["generation"]


async def test_a_webhook_that_hangs_on_statuses_is_reported_by_an_event_within_half_a_minute() -> None:
    server, clock = Server(), Clock()
    writer = status_writer.StatusWriter(server, clock)
    server.failures["LLMService/status"] = ApiError(0, "NoAnswer", "no answer to PATCH")
    clock.now = -9999.0  # an earlier failure, after which there was nothing to write, does not count
    with pytest.raises(ApiError, match="no answer"):
        await writer.write(server.service, {"url": "x"}, "2026-01-01T00:00:00Z")
    assert await writer.write(server.service, dict(server.service.get("status") or {}), "2026-01-01T00:00:00Z") is None
    for second, events in ((0.0, 0), (29.0, 0), (30.0, 1)):
        clock.now = second
        with pytest.raises(ApiError, match="no answer"):
            await writer.write(server.service, {"url": "x"}, "2026-01-01T00:00:00Z")
        assert len(server.events) == events
    assert "no answer to PATCH" in server.events[0]["note"]


async def test_a_new_service_is_made_where_a_webhook_hangs_on_statuses() -> None:
    server = Server()
    server.failures["LLMService/status"] = ApiError(500, "InternalError", "failed calling webhook: deadline exceeded")
    with pytest.raises(ApiError, match="failed calling webhook"):
        await reconciler(server).reconcile(KEY)
    assert server.writes == ["Service", "PodDisruptionBudget", "Deployment"]


async def test_a_new_service_has_a_status_also_where_nothing_could_be_applied() -> None:
    server = Server()
    server.failures = {
        kind: ApiError(500, "InternalError", "failed calling webhook: deadline exceeded")
        for kind in ("Service", "PodDisruptionBudget", "Deployment")
    }
    with pytest.raises(ApiError, match="failed calling webhook"):
        await reconciler(server).reconcile(KEY)
    assert server.writes == ["LLMService/status"]
    assert server.reason("Degraded") == "AsExpected"


async def test_a_new_service_has_a_status_also_where_a_read_fails() -> None:
    """Which image its pods run is not known then, and is not pinned."""
    claim = {"persistentVolumeClaim": {"claimName": "mine", "path": "law"}}
    server = Server(adapters=[{"name": "law", "source": claim}])
    operator = reconciler(server)
    server.unread["PersistentVolumeClaim"] = ApiError(503, "x", "not now")
    for _ in range(2):  # the status is written once
        with pytest.raises(ApiError, match="not now"):
            await operator.reconcile(KEY)
        assert server.writes == ["LLMService/status"]
    assert (server.reason("Degraded"), server.service["status"]["engineImage"]) == ("AsExpected", "")
    server.unread.clear()
    server.live["PersistentVolumeClaim"] = {"metadata": {"name": "mine"}, "spec": {}}
    await operator.reconcile(KEY)
    assert server.service["status"]["engineImage"] == "engine:1"


@pytest.mark.parametrize("pinned", [False, True])
async def test_a_refused_service_says_why_also_where_an_unwatched_child_cannot_be_read(pinned: bool) -> None:
    """Only a service whose image is not pinned needs such reads."""
    server = Server(cache={"type": "HostPath", "hostPath": "/srv/models"})
    if pinned:
        server.service["status"] = {"engineImage": "engine:0"}
    server.unread["Deployment"] = ApiError(503, "x", "not now")
    sources = Sources(server.indexes, unwatched=lambda _: {CHILD["Deployment"]: "no right"})
    operator = Reconciler(server, sources, RenderConfig("engine:1", host_paths=frozenset()))
    with contextlib.nullcontext() if pinned else pytest.raises(ApiError, match="not now"):
        await operator.reconcile(KEY)
    assert server.reason("Degraded") == "PolicyDenied"
    assert server.service["status"]["engineImage"] == ("engine:0" if pinned else "")


async def test_a_webhook_that_hangs_is_reported_after_the_first_pass_that_it_takes() -> None:
    """The time that requests have waited for an answer counts."""
    server = Server()
    operator = reconciler(server)
    seconds = iter(range(0, 600, 10))
    operator._clock = lambda: f"2026-01-01T00:{(second := next(seconds)) // 60:02}:{second % 60:02}Z"  # type: ignore[method-assign]
    server.failures["Deployment"] = ApiError(0, "NoAnswer", "no answer to PATCH /apis/apps/v1/x")
    with pytest.raises(ApiError, match="no answer"):
        await operator.reconcile(KEY)
    assert server.reason("Degraded") == "ApplyFailed"
    assert "no answer to PATCH /apis/apps/v1/x" in server.condition("Degraded")["message"]


async def test_a_crd_without_statuses_is_said_and_children_are_made() -> None:
    server = Server()
    server.failures["LLMService/status"] = ApiError(404, "NotFound", "not found")
    with pytest.raises(ApiError, match="no subresource status"):
        await reconciler(server).reconcile(KEY)
    assert server.writes == ["Service", "PodDisruptionBudget", "Deployment"]


async def test_a_status_that_the_watch_has_not_reported_yet_is_not_written_again() -> None:
    server = Server()
    server.lagging = set(server.indexes)
    operator = reconciler(server)
    await operator.reconcile(KEY)
    server.writes.clear()
    server.events.clear()
    for _ in range(3):
        await operator.reconcile(KEY)
    assert (server.writes, server.events) == ([], [])


async def test_only_the_load_is_written_once_a_minute() -> None:
    """Autoscalers measure it every few seconds; all else is written at once."""
    server = Server(autoscaling={"minReplicas": 1, "maxReplicas": 3})
    operator = await settled(server)
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    writes = []
    for second in range(0, 300, 15):
        operator._clock = lambda now=moment + timedelta(seconds=second): now.strftime("%Y-%m-%dT%H:%M:%SZ")  # type: ignore[misc]
        metric = {"metric": {"name": "octavo_requests_waiting"}, "current": {"averageValue": str(second)}}
        autoscaler = copy.deepcopy(server.live["HorizontalPodAutoscaler"])
        autoscaler["status"] = {"desiredReplicas": 1, "currentMetrics": [{"type": "External", "external": metric}]}
        server._store("HorizontalPodAutoscaler", autoscaler)
        server.writes.clear()
        again = await operator.reconcile(KEY)
        writes.append(server.writes.count("LLMService/status"))
        assert writes[-1] or (again is not None and again <= 60)
    assert sum(writes) == 5
    autoscaler["status"]["desiredReplicas"] = 2
    server._store("HorizontalPodAutoscaler", autoscaler)
    server.writes.clear()
    await operator.reconcile(KEY)
    assert server.writes == ["LLMService/status"]


@pytest.mark.parametrize(("second", "change", "left"), [
    (15, {"replicas": 2, "desiredReplicas": 3, "readyReplicas": 2}, 5.0),
    (15, {"autoscaling": {"queueDepth": "7", "message": "goes from 1 to 3 replicas"}}, 5.0),
    (15, {"conditions": [{"type": "Ready", "status": "True", "reason": "FewerReplicas", "message": "2 of 3"}]}, 5.0),
    (20, {"replicas": 2}, None),
    (1, {"conditions": [{"type": "Ready", "status": "False", "reason": "Deploying", "message": "1 of 1"}]}, None),
    (1, {"observedGeneration": 2}, None),
    (1, {"loading": {"phase": "NotReady"}}, None),
    (1, {"readyReplicas": 0}, None),
])  # fmt: skip
async def test_of_a_service_that_scales_numbers_are_written_each_20_s_and_states_at_once(
    second: int, change: dict[str, Any], left: float | None
) -> None:
    """One change of its replicas changes its status five times or so."""
    server = Server()
    writer = status_writer.StatusWriter(server)
    conditions = [{"type": "Ready", "status": "True", "reason": "Serving", "message": "1 of 1"}]
    status = {"observedGeneration": 1, "conditions": conditions, "loading": {"phase": "Serving"}, "url": "http://good",
              "replicas": 1, "readyReplicas": 1, "autoscaling": {"queueDepth": "1", "message": "at 1"}}  # fmt: skip
    await writer.write(server.service, status, "2026-01-01T00:00:00Z")
    assert await writer.write(server.service, {**status, **change}, f"2026-01-01T00:00:{second:02}Z") == left
    assert server.writes.count("LLMService/status") == (1 if left else 2)


async def test_a_status_that_keeps_changing_is_written_every_10_s_and_of_a_new_spec_at_once() -> None:
    """As while a node is ready and not ready in turns: each of its services had a write a second."""
    server, now = Server(), 1000.0
    writer = status_writer.StatusWriter(server, lambda: now)

    async def write(ready: str, generation: int = 1) -> float | None:
        conditions = [{"type": "Ready", "status": ready, "reason": "Serving", "message": "1 of 1"}]
        status = {"observedGeneration": generation, "conditions": conditions}
        return await writer.write(server.service, status, "2026-01-01T00:00:00Z")

    for change in range(200):
        left = await write("True" if change % 2 else "False")
        now += 3
    written = server.writes.count("LLMService/status")
    assert status_writer.BURST < written <= status_writer.BURST + 61
    for change in range(40):
        left = await write("True" if change % 2 else "False")
    assert left is not None and 0 < left <= 10
    now += left
    shown = server.service["status"]["conditions"][0]["status"]
    other = "False" if shown == "True" else "True"
    assert await write(other) is None
    assert server.service["status"]["conditions"][0]["status"] == other
    assert await write(shown, generation=2) is None
    assert server.service["status"]["observedGeneration"] == 2


@pytest.mark.parametrize("spec", [{"cache": {"hostPath": "/x"}}, {"model": {"source": {"future": {}}}}], ids=str)
async def test_a_pass_comes_back_for_a_paced_status_of_a_spec_that_is_not_followed(
    spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server()
    await settled(server)
    operator = Reconciler(server, Sources(server.indexes), RenderConfig("engine:1", host_paths=frozenset()))
    server.service["spec"].update(spec)

    async def paced(*_: Any) -> float:
        return 7.0

    monkeypatch.setattr(operator._statuses, "write", paced)
    assert await operator.reconcile(KEY) == 7.0


async def test_a_new_leader_that_scales_by_itself_writes_no_status_before_it_has_measured() -> None:
    server, reports = Server(**AUTOSCALED), dict[Any, Any]()
    leaders = [
        Reconciler(server, Sources(server.indexes, scaling=known), RenderConfig("engine:1", scales_directly=True))
        for known in (reports, {})
    ]
    await leaders[0].reconcile(KEY)
    assert "the operator has not measured the load yet" in server.condition("ScalingActive")["message"]
    active = {"type": "ScalingActive", "status": "True", "reason": "ValidMetricFound"}
    reports[KEY] = {
        "metadata": {},
        "status": {"desiredReplicas": 3, "conditions": [active], "lastScaleTime": "2026-01-01T00:00:00Z"},
    }
    await leaders[0].reconcile(KEY)
    assert server.reason("ScalingActive") == "ValidMetricFound"
    server.writes.clear()
    await leaders[1].reconcile(KEY)
    assert "LLMService/status" not in server.writes


@pytest.mark.parametrize("words", ["x", "Aa."])
async def test_a_long_refusal_breaks_no_status(words: str) -> None:
    """The API server says of each field what is wrong with it, and the CRD bounds a condition's message.

    No pattern that is searched in it takes time that grows with the square of its length: one took 10 s of CPU.
    """
    server = Server()
    server.failures["Deployment"] = ApiError(422, "Invalid", (words * 42_000)[:42_000])
    operator = reconciler(server)
    began = time.process_time()
    for _ in range(2):
        with pytest.raises(ApiError):
            await operator.reconcile(KEY)
    assert time.process_time() - began < 5
    assert server.reason("Degraded") == "ApplyFailed"
    assert len(server.condition("Degraded")["message"]) == 4096
