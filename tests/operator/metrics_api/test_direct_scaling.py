"""Direct scaling by the operator: its requests, its writes, and its report in the status."""

from __future__ import annotations

from typing import Any, cast

from octavo_operator.api.resource import parse
from octavo_operator.metrics_api.collector import Collector, NoAnswerError
from octavo_operator.metrics_api.direct_scaling import DirectScaler
from octavo_operator.metrics_api.load import Load
from octavo_operator.reconcile.api_requests.api_error import ApiError
from octavo_operator.reconcile.api_requests.cluster import Cluster
from octavo_operator.reconcile.api_requests.server_clock import ServerClock
from octavo_operator.reconcile.kinds import LLMSERVICE
from octavo_operator.reconcile.observation.observe import Key
from octavo_operator.reconcile.queue import WorkQueue
from octavo_operator.reconcile.status.autoscaling import scaling
from octavo_operator.render.schedules import Bounds
from tests.operator.api_server import autoscaler
from tests.operator.bad_llmservices import VALID, merged

KEY: Key = ("llm", "good")
ONE_A_MINUTE = {"type": "Pods", "value": 1, "periodSeconds": 60}
NOON = 1767268800.0  # 2026-01-01 12:00:00 UTC


class World:
    """An API server that takes numbers of replicas, and pods that have a load."""

    def __init__(self, **autoscaling: Any) -> None:
        spec = {"autoscaling": {"maxReplicas": 8, **autoscaling}, "engine": {"maxConcurrentRequests": 10}}
        status = {"loading": {"lastLoadSeconds": 5}}
        self.service = merged(VALID, {"metadata": {"namespace": "llm"}, "spec": spec, "status": status})
        self.deployment: dict[str, Any] = {"metadata": {"name": "good"}, "spec": {"replicas": 1}}
        copied = merged(self.deployment, {"metadata": {"name": "copy"}, "spec": {"replicas": 50}})
        self.waiting: int | None = 28
        self.running = 2
        self.refuses = False
        self.autoscalers: list[dict[str, Any]] = []
        self.server, self.local = self, NOON  # a Cluster and its ApiServer in one
        self.clock = ServerClock(lambda: self.local)
        indexes = {LLMSERVICE.plural: {KEY: [self.service]}, "deployments": {KEY: [copied, self.deployment]}}
        self.queue, self.seconds, self.writes = WorkQueue[Key](), 0.0, 0
        self.scaler = DirectScaler(cast(Cluster, self), indexes, self.queue, lambda: self.seconds)

    async def scale(self, kind: Any, namespace: str, name: str, replicas: int) -> None:
        if self.refuses:
            raise ApiError(403, "Forbidden", "may not scale")
        self.deployment["spec"]["replicas"] = replicas
        self.writes += 1

    async def list_selected(self, kind: Any, namespace: str, selector: str) -> list[dict[str, Any]]:
        return self.autoscalers

    async def load(self, namespace: str, name: str) -> Load:
        if name == "other":
            raise KeyError("a fault of ours")
        if self.waiting is None:
            raise NoAnswerError("no pod tells")
        return Load(self.waiting, self.running)

    async def scale_once(self) -> tuple[str, str, str]:
        """ScalingActive after one look of the scaler."""
        await self.scaler.scale_all(cast(Collector, self))
        children = {
            ("Deployment", "good"): self.deployment,
            ("HorizontalPodAutoscaler", "good"): self.scaler.reports[KEY],
        }
        return scaling(parse(self.service), Bounds(1, 8), children, 1).scaling_active()


async def test_a_queue_of_seven_times_its_target_gets_seven_replicas_at_once() -> None:
    world = World()
    holds, reason, message = await world.scale_once()
    assert world.deployment["spec"]["replicas"] == 7
    assert (holds, reason) == ("True", "ValidMetricFound")
    assert message == "at 7 (6 are still loading), as many as the load asks for"
    assert len(world.queue) == 1


async def test_without_a_load_it_holds_and_says_why() -> None:
    world = World()
    world.waiting = None
    assert await world.scale_once() == (
        "False",
        "FailedGetExternalMetric",
        "held at 1: the load is not known: no pod tells",
    )
    world.waiting, world.refuses = 28, True
    assert (await world.scale_once())[1:] == ("FailedUpdateScale", "held at 1: may not scale")


async def test_more_than_the_load_asks_for_is_not_called_the_least_number() -> None:
    world = World(behavior={"scaleDown": {"stabilizationWindowSeconds": 0, "policies": [ONE_A_MINUTE]}})
    world.waiting, world.running, world.deployment["spec"]["replicas"] = 0, 0, 4
    await world.scale_once()
    world.seconds += 15
    assert (await world.scale_once())[
        2
    ] == "at 3 (2 are still loading), and shrinks as fast as spec.autoscaling.behavior lets it"


async def test_a_change_that_is_refused_delays_no_later_one() -> None:
    world = World(behavior={"scaleUp": {"stabilizationWindowSeconds": 0, "policies": [ONE_A_MINUTE]}})
    found = []
    for world.refuses in (True, False, False):
        await world.scale_once()
        found.append(world.deployment["spec"]["replicas"])
        world.seconds += 15
    assert found == [1, 2, 2]


async def test_a_new_leader_reports_when_the_last_one_scaled() -> None:
    world, reported = World(), "2026-01-01T11:00:00Z"
    world.waiting, world.service["status"]["autoscaling"] = 4, {"lastScaleTime": reported}
    await world.scale_once()
    assert (world.writes, world.scaler.reports[KEY]["status"]["lastScaleTime"]) == (0, reported)


async def test_what_others_scale_is_left_to_them() -> None:
    for source in ("KEDA", "Prometheus"):
        world = World(metricsSource=source)
        await world.scaler.scale_all(cast(Collector, world))
        assert world.scaler.reports == {}
    world = World()
    await world.scale_once()
    world.service["spec"]["suspend"] = True
    await world.scaler.scale_all(cast(Collector, world))
    assert world.scaler.reports == {}


async def test_a_fault_at_one_service_keeps_no_other_from_being_scaled() -> None:
    world = World()
    other = merged(world.service, {"metadata": {"name": "other"}})
    deployment: dict[str, Any] = {"metadata": {"name": "other"}, "spec": {"replicas": 3}}
    indexes = {
        LLMSERVICE.plural: {("llm", "other"): [other], KEY: [world.service]},
        "deployments": {("llm", "other"): [deployment], KEY: [world.deployment]},
    }
    scaler = DirectScaler(cast(Cluster, world), indexes, world.queue)
    await scaler.scale_all(cast(Collector, world))
    assert world.deployment["spec"]["replicas"] == 7
    (found,) = scaler.reports["llm", "other"]["status"]["conditions"]
    assert scaler.reports["llm", "other"]["status"]["desiredReplicas"] == 3
    assert found["status"] == "False" and "a bug in the operator" in found["message"]


async def test_schedules_begin_by_the_api_servers_clock() -> None:
    noon = {"name": "noon", "start": "30 11 * * *", "duration": "1h", "minReplicas": 5, "maxReplicas": 6}
    world = World(schedules=[noon])
    world.waiting, world.local = 0, NOON + 7200
    world.clock.note_date("Thu, 01 Jan 2026 12:00:00 GMT")
    await world.scale_once()
    assert world.deployment["spec"]["replicas"] == 5
    assert world.scaler.reports[KEY]["status"]["lastScaleTime"] == "2026-01-01T12:00:00Z"


async def test_the_operator_backs_off_while_another_client_scales_and_reports_it() -> None:
    world = World()
    for _ in range(480):  # two hours
        world.seconds += 15
        found = await world.scale_once()
        world.deployment["spec"]["replicas"] = 1
    assert 3 <= world.writes <= 8
    assert found[:2] == ("False", "FieldConflict")
    assert "another client keeps changing the number of replicas (kubectl get hpa" in found[2]
    for _ in range(480):  # it was stopped
        world.seconds += 15
        found = await world.scale_once()
    assert (world.deployment["spec"]["replicas"], found[0]) == (7, "True")


async def test_when_the_autoscaler_that_interfered_is_deleted_the_operator_scales_again_at_once() -> None:
    world = World()
    world.autoscalers = [autoscaler("theirs")]
    for _ in range(240):  # an hour
        world.seconds += 15
        found = await world.scale_once()
        world.deployment["spec"]["replicas"] = 1
    assert "HorizontalPodAutoscaler theirs keeps changing the number of replicas" in found[2]
    world.autoscalers = []
    world.seconds += 15
    await world.scale_once()
    assert world.deployment["spec"]["replicas"] == 7
