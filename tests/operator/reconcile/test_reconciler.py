"""The order of a reconcile pass, and failures that cannot be produced at will with a real API server.

tests/cluster/test_llmservice_reconcile.py tests the rest with a real one.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest

from octavo_operator.api.names import SERVICE_LABEL, pod_labels
from octavo_operator.api.resource import parse
from octavo_operator.reconcile.api_requests.api_error import ApiError
from octavo_operator.reconcile.apply.children import Children
from octavo_operator.reconcile.apply.dependencies import in_order
from octavo_operator.reconcile.apply.field_conflicts import FieldConflicts
from octavo_operator.reconcile.fields.added_fields import Path
from octavo_operator.reconcile.kinds import POD
from octavo_operator.reconcile.observation.observe import key_of, observe
from octavo_operator.reconcile.observation.sources import Sources
from octavo_operator.reconcile.observation.trimmed import trimmed
from octavo_operator.reconcile.reconciler import Reconciler
from octavo_operator.reconcile.status.remembered import Remembered
from octavo_operator.render import RenderConfig, render
from tests.operator.api_server import AUTOSCALED, CHILD, KEY, SERVING_POD, Server, reconciler, settled, with_pods


def test_a_pod_with_the_label_of_a_service_alone_belongs_to_none() -> None:
    def pod(**labels: str) -> dict[str, Any]:
        return {"metadata": {"name": "p", "namespace": "llm", "labels": labels}}

    assert key_of(POD, pod(**pod_labels("good"))) == KEY
    assert key_of(POD, pod(**{**pod_labels("good"), "octavo.dev/track": "canary"})) == KEY
    assert key_of(POD, pod(**{SERVICE_LABEL: "good"})) is None
    assert key_of(POD, pod(**{**pod_labels("good"), "app.kubernetes.io/component": "gateway"})) is None


async def test_a_new_service_takes_four_writes() -> None:
    server = Server()
    await reconciler(server).reconcile(KEY)
    assert server.writes == ["Service", "PodDisruptionBudget", "Deployment", "LLMService/status"]
    assert server.service["status"]["engineImage"] == "engine:1"


async def test_an_upgrade_after_a_first_pass_that_was_cut_short_changes_no_image() -> None:
    server = Server()
    server.failures["LLMService/status"] = ApiError(503, "x", "ends here")
    with pytest.raises(ApiError, match="ends here"):
        await reconciler(server).reconcile(KEY)
    del server.failures["LLMService/status"]
    await reconciler(server, image="engine:2").reconcile(KEY)
    assert server.service["status"]["engineImage"] == "engine:1"
    (container,) = server.live["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "engine:1"


async def test_what_no_controller_acts_on_is_reported_once_it_lasts_and_no_longer_when_one_does() -> None:
    """A change that is not observed, and then pods that are not made."""
    server, moments = Server(), ["2026-01-01T00:00:00Z"]
    operator = Reconciler(server, Sources(server.indexes), RenderConfig("engine:1"), clock=lambda: moments[-1])
    await operator.reconcile(KEY)
    for observed, pods, now, reason in (
        (0, 0, "2026-01-01T00:01:00Z", "AsExpected"),
        (0, 0, "2026-01-01T00:01:45Z", "NoController"),
        (1, 0, "2026-01-01T00:02:00Z", "AsExpected"),
        (1, 0, "2026-01-01T00:02:45Z", "NoController"),
        (1, 1, "2026-01-01T00:03:00Z", "AsExpected"),
    ):
        server.live["Deployment"]["status"] = {"observedGeneration": observed}
        server.indexes[POD.plural][KEY] = [trimmed(POD, SERVING_POD)] * pods
        server.indexes["deployments"][KEY] = [trimmed(CHILD["Deployment"], server.live["Deployment"])]
        moments.append(now)
        await operator.reconcile(KEY)
        assert server.reason("Stalled") == reason, now


async def test_a_load_balancer_that_gets_no_address_is_reported_once_it_lasts() -> None:
    server, moments, known = Server(service={"type": "LoadBalancer"}), ["2026-01-01T00:00:00Z"], Remembered()

    def opened() -> Reconciler:
        """As after the watches have been opened again."""
        sources, config = Sources(server.indexes), RenderConfig("engine:1")
        return Reconciler(server, sources, config, clock=lambda: moments[-1], remembered=known)

    await opened().reconcile(KEY)
    again = await opened().reconcile(KEY)
    assert again is not None and again <= 181, "it is looked at again when its time is over"
    for seconds, ingress, reason in (
        (179, [], "AsExpected"),
        (180, [], "NoLoadBalancer"),
        (190, [{"ip": "192.0.2.1"}], "AsExpected"),
        (195, [], "AsExpected"),  # it waits anew
    ):
        moments.append(f"2026-01-01T00:{seconds // 60:02}:{seconds % 60:02}Z")
        found = trimmed(CHILD["Service"], {**server.live["Service"], "status": {"loadBalancer": {"ingress": ingress}}})
        server.indexes["services"][KEY] = [found]
        await opened().reconcile(KEY)
        assert server.reason("Degraded") == reason, seconds
        if reason != "AsExpected":
            assert "set spec.service.type to NodePort or ClusterIP" in server.condition("Degraded")["message"]


GONE_KINDS = [
    ApiError(404, "NotFound", "this cluster has no ServiceMonitor: install its CRD"),
    ApiError(403, "Forbidden", "create not allowed while custom resource definition is terminating"),
]


@pytest.mark.parametrize("gone", GONE_KINDS, ids=lambda error: error.reason)
async def test_a_foreign_crd_that_has_just_been_removed_degrades_nothing(gone: ApiError) -> None:
    """The watches are opened again without it: only then it matters whether the spec asks for its kind."""
    for kinds, reason in ((frozenset({"ServiceMonitor"}), "AsExpected"), (frozenset[str](), "ApplyFailed")):
        server = Server(monitoring={"enabled": "Always"})
        server.failures["ServiceMonitor"] = gone
        with pytest.raises(ApiError, match=gone.message):
            await Reconciler(server, Sources(server.indexes), RenderConfig("engine:1", kinds)).reconcile(KEY)
        assert server.reason("Degraded") == reason


async def test_a_crd_that_is_newer_than_the_operator_stops_nothing() -> None:
    """The API server fills the defaults of fields that are unknown here into every object that is read."""
    server = Server()
    operator = await settled(server)
    server.service["spec"].update(future={"of": "a newer version"}, replicas=2)
    server.service["spec"]["engine"] = {"futureFlag": 1}
    await operator.reconcile(KEY)
    assert server.live["Deployment"]["spec"]["replicas"] == 2
    found = server.condition("Degraded")
    assert (found["status"], found["reason"]) == ("False", "AsExpected")
    assert "spec.engine.futureFlag, spec.future" in found["message"]
    server.writes.clear()
    await operator.reconcile(KEY)
    assert server.writes == []


async def test_what_serves_is_available_also_where_the_spec_is_not_understood() -> None:
    server = Server()
    operator = await settled(server)
    with_pods(server, 1)
    await operator.reconcile(KEY)
    before = {kind: server.condition(kind) for kind in ("Available", "ModelLoaded", "ScalingActive")}
    assert before["Available"]["status"] == "True"
    server.service["spec"]["model"] = {"source": {"future": {}}}
    await operator.reconcile(KEY)
    assert {kind: server.condition(kind) for kind in before} == before
    assert (server.reason("Ready"), server.reason("Degraded")) == ("Invalid", "Invalid")
    assert "spec.model.source.future" in server.condition("Ready")["message"]


async def test_a_stored_field_of_another_type_keeps_no_status_from_being_written() -> None:
    """Server-side apply refuses to change such an object, also its status alone."""
    server = Server()
    operator = await settled(server)
    theirs = {"type": "Theirs", "status": "True", "reason": "X", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    server.service["status"]["conditions"].append(theirs)
    server.service["status"]["odd"] = 1
    said = "failed to create typed live object (llm/good): .spec.engine.maxModelLength: expected numeric"
    server.failures["LLMService/status"] = ApiError(500, "", said)
    server.service["spec"]["engine"] = {"maxModelLength": "many"}
    await operator.reconcile(KEY)
    assert (server.reason("Ready"), server.reason("Degraded")) == ("Invalid", "Invalid")
    assert server.condition("Theirs")["reason"] == "X"
    server.writes.clear()
    await operator.reconcile(KEY)
    assert server.writes == []


async def test_pods_get_the_list_of_adapters_and_what_keeps_them_from_it_is_reported() -> None:
    server = Server(adapters=[{"name": "sql", "source": {"huggingFace": {"repository": "owner/sql"}}}])
    operator = await settled(server)
    pod = {"metadata": {"name": "good-1", "namespace": "llm", "uid": "p", "creationTimestamp": "2026-01-01T00:00:00Z"}}
    server.indexes[POD.plural][KEY] = [trimmed(POD, {**pod, "spec": {}, "status": {}})]
    server.writes.clear()
    await operator.reconcile(KEY)
    assert "merge Pod good-1" in server.writes
    server.failures["Pod"] = ApiError(403, "Forbidden", "may not patch pods")
    with pytest.raises(ApiError, match="may not patch pods"):
        await operator.reconcile(KEY)
    assert server.reason("Degraded") == "ApplyFailed"
    assert "may not patch pods" in server.condition("Degraded")["message"]


async def test_an_adapter_that_only_an_older_crd_allowed_degrades_itself_alone() -> None:
    server = Server(adapters=[{"name": "old", "source": {"huggingFace": {"repository": "owner/name:Q4"}}}])
    await settled(server)
    assert server.reason("Degraded") == server.reason("AdaptersReady") == "AdapterFailed"
    assert "adapter old failed in 1 replica: its repository 'owner/name:Q4'" in server.condition("Degraded")["message"]
    assert server.reason("Ready") != "Invalid"
    template, right = server.live["Deployment"]["spec"]["template"], Server()
    right.service["spec"]["adapters"] = [{"name": "old", "source": {"huggingFace": {"repository": "owner/name"}}}]
    await settled(right)
    assert template == right.live["Deployment"]["spec"]["template"], "to correct it needs no new pod"


async def test_an_adapter_whose_claim_is_missing_keeps_no_pod_from_starting() -> None:
    hub, claim = {"huggingFace": {"repository": "owner/sql"}}, {"persistentVolumeClaim": {"claimName": "tunes"}}
    server = Server(adapters=[{"name": "sql", "source": hub}, {"name": "fr", "source": claim}])
    server.indexes[POD.plural][KEY] = [
        {"metadata": {"name": "good-1", "uid": "p", "creationTimestamp": "2026-01-01T00:00:00Z"}, "status": {}}
    ]
    operator = await settled(server)

    def claims() -> list[str]:
        volumes = server.live["Deployment"]["spec"]["template"]["spec"]["volumes"]
        return [each["persistentVolumeClaim"]["claimName"] for each in volumes if "persistentVolumeClaim" in each]

    assert claims() == []
    assert await operator.reconcile(KEY) == 10.0
    assert (server.reason("AdaptersReady"), server.reason("Degraded")) == ("AdapterFailed", "AdapterFailed")
    assert "there is no PersistentVolumeClaim tunes" in server.condition("AdaptersReady")["message"]
    server.live["PersistentVolumeClaim"] = {"metadata": {"name": "tunes"}}
    await operator.reconcile(KEY)
    assert claims() == ["tunes"]
    assert server.reason("AdaptersReady") == "AdaptersLoading"


async def test_a_pod_whose_volumes_are_not_mounted_yet_is_looked_at_again() -> None:
    server = Server()
    operator = await settled(server)
    operator._clock = lambda: "2026-01-01T00:00:04Z"
    waits = {"type": "PodReadyToStartContainers", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    pod = {"name": "good-1", "uid": "p", "creationTimestamp": "2026-01-01T00:00:00Z"}
    volumes = [{"name": "api-keys", "secret": {"secretName": "clients"}}]
    server.indexes[POD.plural][KEY] = [
        {"metadata": pod, "spec": {"volumes": volumes}, "status": {"conditions": [waits]}}
    ]
    assert await operator.reconcile(KEY) == 7.0
    operator._clock = lambda: "2026-01-01T00:00:11Z"
    assert await operator.reconcile(KEY) == 35.0  # when it counts as stalled
    operator._clock = lambda: "2026-01-01T00:00:46Z"
    assert await operator.reconcile(KEY) is None
    assert server.reason("Ready") == "WaitingForVolumes"


async def test_a_second_pass_writes_nothing_and_a_new_operator_only_what_changes_nothing() -> None:
    server = Server()
    first = reconciler(server)
    await first.reconcile(KEY)
    await first.reconcile(KEY)
    server.writes.clear()
    await first.reconcile(KEY)
    assert server.writes == []
    await reconciler(server, "engine:2").reconcile(KEY)
    assert server.writes == ["Service", "PodDisruptionBudget", "Deployment"]
    assert server.service["status"]["engineImage"] == "engine:1"


@pytest.mark.parametrize("status", [0, 401, 408, 409, 429, 500, 503])
async def test_a_passing_failure_is_tried_again_and_not_reported(status: int) -> None:
    server = Server()
    await reconciler(server).reconcile(KEY)
    before = copy.deepcopy(server.service["status"])
    server.failures["Deployment"] = ApiError(status, "x", "try later")
    with pytest.raises(ApiError, match="try later"):
        await reconciler(server).reconcile(KEY)
    assert server.service["status"] == before


async def test_a_failure_that_should_pass_and_lasts_is_reported() -> None:
    """The failure of a missing admission webhook is such a case."""
    server = Server()
    operator = reconciler(server)
    server.failures["PodDisruptionBudget"] = ApiError(500, "InternalError", 'failed calling webhook "policy"')
    for second, reason in ((0, None), (29, None), (30, "ApplyFailed")):
        operator._clock = lambda second=second: f"2026-01-01T00:{second // 60:02}:{second % 60:02}Z"  # type: ignore[misc]
        with pytest.raises(ApiError, match="failed calling webhook") as raised:
            await operator.reconcile(KEY)
        assert raised.value.within == (60 if reason else 30 - second), "growing pauses delay neither report nor healing"
        assert (server.reason("Degraded") == "ApplyFailed") == (reason is not None)
    server.failures.clear()
    await operator.reconcile(KEY)
    assert server.reason("Degraded") == "AsExpected"


@pytest.mark.parametrize("status", [400, 403, 422, 500])
async def test_a_refusal_is_reported_and_tried_again(status: int) -> None:
    server = Server()
    words = "failed to create typed patch object: spec.template is wrong: field not declared in schema"
    server.failures["Deployment"] = ApiError(status, "Invalid", words)
    with pytest.raises(ApiError, match=r"spec\.template is wrong"):
        await reconciler(server).reconcile(KEY)
    assert (server.reason("Ready"), server.reason("Degraded")) == ("ApplyFailed", "ApplyFailed")
    assert "Service" in server.writes
    server.failures.clear()
    await reconciler(server).reconcile(KEY)
    assert server.reason("Degraded") == "AsExpected"


async def test_a_namespace_that_is_being_deleted_is_reported_and_nothing_is_tried_again() -> None:
    server = Server()
    words = 'deployments.apps "good" is forbidden: unable to create new content in namespace llm because it is being '
    ends = frozenset({"NamespaceTerminating"})
    server.failures["Deployment"] = ApiError(403, "Forbidden", f"{words}terminated", causes=ends)
    assert await reconciler(server).reconcile(KEY) is None
    assert {server.reason(kind) for kind in ("Ready", "Degraded", "Stalled")} == {"BeingDeleted"}


REFUSED = [
    ("PodDisruptionBudget", 1, "Serving"),
    ("PodDisruptionBudget", 0, "Deploying"),
    ("Deployment", 1, "Serving"),
    ("Deployment", 0, "ApplyFailed"),
    ("Service", 0, "ApplyFailed"),
]


@pytest.mark.parametrize(("kind", "ready", "reason"), REFUSED)
async def test_a_refusal_takes_ready_away_only_where_nothing_serves_for_it(kind: str, ready: int, reason: str) -> None:
    server = Server()
    operator = await settled(server)
    with_pods(server, ready)
    server.failures[kind] = ApiError(403, "Forbidden", "a policy says no")
    server.service["spec"].update(engine={"maxModelLength": 77}, service={"port": 81}, disruption={"maxUnavailable": 2})
    with pytest.raises(ApiError, match="a policy says no"):
        await operator.reconcile(KEY)
    with_pods(server, ready)
    with pytest.raises(ApiError, match="a policy says no"):
        await operator.reconcile(KEY)
    assert (server.reason("Ready"), server.reason("Degraded")) == (reason, "ApplyFailed")
    assert server.condition("Degraded")["message"] == f"{kind} good: a policy says no"


async def test_without_a_service_nothing_is_ready_also_where_endpoints_may_not_be_watched() -> None:
    server = Server()
    server.failures["Service"] = ApiError(403, "Forbidden", "a quota says no")
    operator = reconciler(server)
    for _ in range(2):
        with pytest.raises(ApiError):
            await operator.reconcile(KEY)
        with_pods(server, 1)
    with pytest.raises(ApiError):
        await operator.reconcile(KEY)
    assert (server.condition("Ready")["status"], server.reason("Ready")) == ("False", "ApplyFailed")


async def test_ready_pods_of_another_selector_are_not_the_services() -> None:
    """Another client has created the Deployment with our labels, and with a selector that cannot be changed."""
    server = Server()
    operator = await settled(server)
    with_pods(server, 1)
    del server.indexes["pods"][KEY]
    await operator.reconcile(KEY)
    assert (server.condition("Ready")["status"], server.service["status"]["readyReplicas"]) == ("False", 0)


def test_what_an_earlier_pass_has_left_comes_first_but_after_what_it_names() -> None:
    server = Server(cache={"type": "PersistentVolumeClaim", "size": "1Gi"}, autoscaling=AUTOSCALED["autoscaling"])
    ordered = in_order(render(parse(server.service), RenderConfig("engine:1")), {("HorizontalPodAutoscaler", "good")})
    kinds = [manifest["kind"] for manifest in ordered]
    assert kinds[:4] == ["PersistentVolumeClaim", "Deployment", "HorizontalPodAutoscaler", "Service"]
    assert len(kinds) == len(set(kinds))


@pytest.mark.parametrize("status", [403, 503])
async def test_what_is_due_is_not_lost_by_a_failure(status: int) -> None:
    schedule = {"name": "s", "start": "0 8 * * *", "duration": "2h", "minReplicas": 4, "maxReplicas": 9}
    server = Server(autoscaling={**AUTOSCALED["autoscaling"], "schedules": [schedule]})
    operator = reconciler(server)
    operator._clock = lambda: "2026-01-01T07:59:50Z"
    server.failures["PodDisruptionBudget"] = ApiError(status, "x", "not now")
    with pytest.raises(ApiError, match="not now") as failure:
        await operator.reconcile(KEY)
    assert failure.value.within == 11
    server.failures = {"LLMService/status": ApiError(status, "x", "not now")}
    server.service["spec"]["disruption"] = {"maxUnavailable": 2}
    server.service["status"]["observedGeneration"] = 0
    with pytest.raises(ApiError, match="not now") as failure:
        await operator.reconcile(KEY)
    assert failure.value.within == 11


async def test_a_refused_claim_that_the_deployment_waits_for_is_said_once() -> None:
    server = Server(cache={"type": "PersistentVolumeClaim", "size": "1Gi"})
    refusal = ApiError(403, "Forbidden", 'persistentvolumeclaims "good-cache" is forbidden: exceeded quota')
    server.failures["PersistentVolumeClaim"] = refusal
    with pytest.raises(ApiError):
        await reconciler(server).reconcile(KEY)
    for kind in ("Ready", "Progressing", "Degraded", "Stalled"):
        assert server.condition(kind)["message"] == refusal.message


async def test_a_field_that_makes_no_pod_keeps_none_from_ending() -> None:
    server = Server()
    operator = await settled(server)
    server.service["spec"].update(engine={"extraArgs": ["--speculative-config={}"]}, suspend=True)
    await operator.reconcile(KEY)
    assert server.live["Deployment"]["spec"]["replicas"] == 0
    assert (server.reason("Ready"), server.reason("Degraded")) == ("Suspended", "FieldsNotYetActedOn")
    server.service["spec"]["suspend"] = False
    await operator.reconcile(KEY)
    assert server.live["Deployment"]["spec"]["replicas"] == 0
    assert server.reason("Ready") == "FieldsNotYetActedOn"


async def test_a_refused_child_stops_no_other() -> None:
    """A claim that cannot grow: the service can be suspended all the same, and what is no longer wanted goes."""
    server = Server(cache={"type": "PersistentVolumeClaim", "size": "10Gi"})
    operator = reconciler(server)
    await operator.reconcile(KEY)
    server.failures["PersistentVolumeClaim"] = ApiError(403, "Forbidden", "only dynamically provisioned pvc can grow")
    server.failures["Service"] = ApiError(422, "Invalid", "the second refusal")
    server.service["spec"].update(suspend=True, disruption=None, service={"port": 81})
    server.service["spec"]["cache"]["size"] = "20Gi"
    with pytest.raises(ApiError, match="can grow"):
        await operator.reconcile(KEY)
    assert server.live["Deployment"]["spec"]["replicas"] == 0
    assert "delete PodDisruptionBudget" in server.writes
    assert server.reason("Degraded") == "ApplyFailed"
    assert "can grow" in str(server.service["status"]["conditions"])


async def test_a_child_that_is_out_of_reach_stops_no_other() -> None:
    server = Server()
    server.failures["Service"] = ApiError(503, "x", "try later")
    with pytest.raises(ApiError, match="try later"):
        await reconciler(server).reconcile(KEY)
    assert "Deployment" in server.writes


async def test_a_change_is_not_called_deployed_because_the_old_state_was() -> None:
    server = Server()
    operator = reconciler(server)
    await operator.reconcile(KEY)
    with_pods(server, 1)
    await operator.reconcile(KEY)
    assert server.reason("Progressing") == "Deployed"
    server.service["spec"]["engine"] = {"maxModelLength": 77}
    server.lagging = {"deployments"}
    for _ in range(2):
        await operator.reconcile(KEY)
        assert (server.reason("Progressing"), server.reason("Ready")) == ("Deploying", "RollingOut")
    with_pods(server, 1)
    server.live["Deployment"]["status"]["replicas"] = 2
    server.indexes["deployments"][KEY] = [trimmed(CHILD["Deployment"], server.live["Deployment"])]
    for _ in range(2):
        await operator.reconcile(KEY)
        assert server.reason("Ready") == "RollingOut", "the controller has acted, and an old pod is left"


async def test_another_number_of_replicas_is_no_rollout_before_the_controller_has_acted_on_it() -> None:
    server = Server()
    operator = reconciler(server)
    await operator.reconcile(KEY)
    with_pods(server, 1)
    await operator.reconcile(KEY)
    server.service["spec"]["replicas"] = 3
    for _ in range(2):
        await operator.reconcile(KEY)
        assert server.live["Deployment"]["metadata"]["generation"] == 2
        assert server.reason("Ready") == "FewerReplicas"


async def test_a_pass_ends_where_the_api_server_takes_too_long_and_the_next_one_begins_with_the_rest() -> None:
    """An admission webhook of one namespace that does not answer must not keep all workers busy."""

    class Slow(Server):
        now = 0.0

        async def apply(self, manifest: dict[str, Any], *arguments: Any, **more: Any) -> dict[str, Any]:
            self.now += 20
            if manifest["kind"] != "LLMService":
                self.tried.append(manifest["kind"])
            return await super().apply(manifest, *arguments, **more)

        tried: list[str] = []  # noqa: RUF012

    server = Slow()
    children = Children(server, FieldConflicts(), clock=lambda: server.now)
    service = parse(server.service)
    wanted = render(service, RenderConfig("engine:1"))
    applied = await children.apply(KEY, service, observe(KEY, server.indexes), wanted)
    assert server.tried == ["Service", "PodDisruptionBudget"]
    assert [failure.reason for failure in applied.failures.values()] == ["OutOfTime"]
    assert applied.refusals == {}
    await children.apply(KEY, service, observe(KEY, server.indexes), wanted)
    assert server.tried[2] == "Deployment"


async def test_a_refusal_of_what_the_spec_asks_for_stays_one() -> None:
    server = Server()
    operator = await settled(server)

    async def put_back(manifest: dict[str, Any], added: Sequence[Path] = (), dry_run: bool = False) -> dict[str, Any]:
        raise ApiError(422, "Invalid", "a merge is refused too")

    server.put_back = put_back  # type: ignore[method-assign]
    server.failures["Service"] = ApiError(422, "Invalid", "no such type")
    server.service["spec"]["service"] = {"type": "LoadBalancer"}
    with pytest.raises(ApiError, match="no such type"):
        await operator.reconcile(KEY)


async def test_a_restore_without_a_status_keeps_the_image_that_runs() -> None:
    server = Server()
    await settled(server)
    del server.service["status"]
    upgraded = reconciler(server, image="engine:2")
    for _ in range(2):
        await upgraded.reconcile(KEY)
    assert server.service["status"]["engineImage"] == "engine:1"
    (container,) = server.live["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "engine:1"


async def test_a_pass_asks_to_be_repeated_when_a_schedule_begins_or_ends() -> None:
    schedule = {"name": "s", "start": "0 8 * * *", "duration": "2h", "minReplicas": 4, "maxReplicas": 9}
    server = Server(autoscaling={**AUTOSCALED["autoscaling"], "schedules": [schedule]})
    operator = reconciler(server)
    for now, seconds, least in (("07:00:00", 3601, 3), ("08:00:00", 7201, 4), ("10:00:00", 79_201, 3)):
        operator._clock = lambda now=now: f"2026-01-01T{now}Z"  # type: ignore[misc]
        assert await operator.reconcile(KEY) == seconds
        assert server.live["HorizontalPodAutoscaler"]["spec"]["minReplicas"] == least
