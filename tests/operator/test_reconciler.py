"""The order of a reconcile pass, and failures that cannot be produced at will with a real API server.

tests/cluster/test_llmservice_reconcile.py tests the rest with a real one.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from octavo_operator.api.names import SERVICE_LABEL, pod_labels
from octavo_operator.api.resource import parse
from octavo_operator.reconcile import reconciler as reconciler_module
from octavo_operator.reconcile.api_requests.api_error import ApiError
from octavo_operator.reconcile.apply.children import Children
from octavo_operator.reconcile.apply.dependence import in_order
from octavo_operator.reconcile.apply.field_conflicts import FieldConflicts, others
from octavo_operator.reconcile.fields.added_fields import Path
from octavo_operator.reconcile.kinds import CHILDREN, LLMSERVICE, OPTIONAL, POD, Kind
from octavo_operator.reconcile.metrics import OperatorMetrics
from octavo_operator.reconcile.observation.observe import key_of, observe, trimmed
from octavo_operator.reconcile.reconciler import Reconciler
from octavo_operator.reconcile.status import status_writer
from octavo_operator.render import RenderConfig, render
from octavo_operator.render.metrics_service import metrics_service
from tests.operator.bad_llmservices import GONE, VALID, merged

KEY = ("llm", "good")
CHILD = {kind.name: kind for kind in (*CHILDREN, *OPTIONAL)}
DELETED_SCALER = "delete HorizontalPodAutoscaler"
METADATA = {"namespace": "llm", "uid": "u1", "generation": 1, "resourceVersion": "0"}


class Server:
    """Keeps what is applied, as server-side apply would, and shows it as watches would; fails where a test says so."""

    def __init__(self, **spec: Any) -> None:
        self.writes: list[str] = []
        self.events: list[dict[str, Any]] = []
        self.live: dict[str, dict[str, Any]] = {}
        self.failures: dict[str, ApiError] = {}
        self.unread: dict[str, ApiError] = {}
        """Errors of reads of children, by kind."""
        self.version = 0
        self.refuses_writes = False
        """Whether it only answers what would be."""
        self.named: dict[str, Any] = {}
        """The LLMService as it lives, where the watch is behind."""
        self.others_status: dict[str, Any] = {}
        """Fields of the status that another manager has set, and keeps."""
        self.others_conditions: list[dict[str, Any]] = []
        self.not_in_crd: set[str] = set()
        """Fields of the status that the cluster's CRD does not have."""
        self.lagging: set[str] = set()
        """Plurals of the kinds whose watch reports nothing any more."""
        self.indexes: dict[str, dict[Any, list[Any]]] = {
            kind.plural: {} for kind in (LLMSERVICE, POD, *CHILDREN, *OPTIONAL)
        }
        self.indexes[LLMSERVICE.plural][KEY] = [merged(VALID, {"metadata": METADATA, "spec": spec})]

    @property
    def service(self) -> dict[str, Any]:
        found: dict[str, Any] = self.indexes[LLMSERVICE.plural][KEY][0]
        return found

    def reason(self, kind: str) -> str:
        return str(self.condition(kind)["reason"])

    def condition(self, kind: str) -> dict[str, Any]:
        return next(found for found in self.service["status"]["conditions"] if found["type"] == kind)

    def change(self, kind: str, change: dict[str, Any], manager: str = "kubectl") -> None:
        """Another client changes a child: a merge patch whose `spec` they then own."""
        live = merged(self.live[kind], change)
        fields = {f"f:{name}": {} for name in change["spec"]}
        live["metadata"]["managedFields"] = [{"manager": manager, "fieldsV1": {"f:spec": fields}}]
        self._store(kind, live)

    def remove(self, kind: str) -> None:
        """Another client deletes a child."""
        del self.live[kind]
        del self.indexes[CHILD[kind].plural][KEY]

    async def get(self, kind: Kind, namespace: str, name: str) -> dict[str, Any] | None:
        if kind.name in self.unread:
            raise self.unread[kind.name]
        return copy.deepcopy((self.named or self.service) if kind is LLMSERVICE else self.live.get(kind.name))

    async def create_event(self, event: dict[str, Any]) -> bool:
        self.events.append(event)
        return True

    async def repeat_event(self, namespace: str, name: str, now: str) -> None:
        raise AssertionError("no event is repeated here")

    async def apply(
        self,
        manifest: dict[str, Any],
        subresource: str = "",
        dry_run: bool = False,
        manager: str = "octavo-operator",
        force: bool = True,
    ) -> dict[str, Any]:
        what = manifest["kind"] + subresource
        if what in self.failures:
            raise self.failures[what]
        if self.refuses_writes and not dry_run:
            raise ApiError(503, "x", "try later")
        if not dry_run:
            self.writes.append(what)
        if subresource:
            if unknown := self.not_in_crd & manifest["status"].keys():
                sentence = "\n".join(f".status.{name}: field not declared in schema" for name in sorted(unknown))
                raise ApiError(500, "", f"failed to create typed patch object (llm/good): {sentence}")
            self.version += 1
            written = merged(self.service, {"metadata": {"resourceVersion": str(self.version)}})
            written["status"] = {**self.others_status, **copy.deepcopy(manifest["status"])}
            written["status"]["conditions"] += self.others_conditions
            if LLMSERVICE.plural not in self.lagging:
                self.indexes[LLMSERVICE.plural][KEY] = [written]
            return copy.deepcopy(written)
        before = self.live.get(manifest["kind"], {"metadata": {"uid": "c1", "generation": 0}})
        live = merged(before, manifest)
        if manifest["kind"] == "Service":
            live["spec"]["ports"] = beside((before.get("spec") or {}).get("ports", []), manifest["spec"]["ports"])
            live["spec"]["selector"] = dict(manifest["spec"]["selector"])  # the API server's schema: atomic
        if {"minAvailable", "maxUnavailable"} <= live["spec"].keys():
            raise ApiError(422, "Invalid", "minAvailable and maxUnavailable cannot be both set")
        if dry_run:
            return live
        if live != before:
            self._store(manifest["kind"], live)
        return copy.deepcopy(self.live[manifest["kind"]])

    async def put_back(
        self, manifest: dict[str, Any], added: Sequence[Path] = (), dry_run: bool = False
    ) -> dict[str, Any]:
        live = merged(merged(self.live[manifest["kind"]], manifest), removal(added))
        if not dry_run:
            self.writes.append(f"put back {manifest['kind']}")
            self._store(manifest["kind"], live)
        return copy.deepcopy(live)

    def _store(self, kind: str, live: dict[str, Any]) -> None:
        self.version += 1
        generation = live["metadata"]["generation"] + (live["spec"] != self.live.get(kind, {}).get("spec"))
        live["metadata"].update(generation=generation, resourceVersion=str(self.version))
        self.live[kind] = live
        if CHILD[kind].plural not in self.lagging:
            self.indexes[CHILD[kind].plural][KEY] = [trimmed(CHILD[kind], live)]

    async def merge(self, kind: Kind, namespace: str, name: str, patch: Any, subresource: str = "") -> Any:
        self.writes.append(f"merge {kind.name}{subresource} {name}")
        if kind.name in self.failures:
            raise self.failures[kind.name]
        if kind.name in self.live:
            self._store(kind.name, merged(self.live[kind.name], patch))
        if kind is LLMSERVICE:
            self.version += 1
            self.others_status = {
                name: self.others_status[name] for name in self.others_status.keys() - patch["status"]
            }
            status = {name: GONE if value is None else value for name, value in patch["status"].items()}
            metadata = {"resourceVersion": str(self.version)}
            written = merged(self.service, {"metadata": metadata, "status": status})
            self.indexes[LLMSERVICE.plural][KEY] = [written]
            return copy.deepcopy(written)
        return None

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str, version: str = "") -> None:
        self.writes.append(f"delete {kind.name}")
        metadata = self.live[kind.name]["metadata"]
        if metadata["uid"] == uid and version in ("", metadata["resourceVersion"]):
            self.remove(kind.name)


def beside(theirs: list[dict[str, Any]], ours: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Ports as server-side apply merges them, by number; ApiError as the API server's where two have one name."""
    numbers = {port["port"] for port in ours}
    found = [*(port for port in theirs if port["port"] not in numbers), *ours]
    if len({port["name"] for port in found}) < len(found):
        raise ApiError(422, "Invalid", 'spec.ports[1].name: Duplicate value: "http"')
    return found


def removal(paths: Sequence[Path]) -> dict[str, Any]:
    """A patch that removes what is at these places."""
    patch: dict[str, Any] = {}
    for *way, last in paths:
        here = patch
        for step in way:
            here = here.setdefault(step, {})
        here[last] = GONE
    return patch


def reconciler(server: Server, image: str = "engine:1") -> Reconciler:
    return Reconciler(server, server.indexes, RenderConfig(image))


def test_a_pod_with_the_label_of_a_service_alone_belongs_to_none() -> None:
    def pod(**labels: str) -> dict[str, Any]:
        return {"metadata": {"name": "p", "namespace": "llm", "labels": labels}}

    assert key_of(POD, pod(**pod_labels("good"))) == KEY
    assert key_of(POD, pod(**{**pod_labels("good"), "octavo.dev/track": "canary"})) == KEY
    assert key_of(POD, pod(**{SERVICE_LABEL: "good"})) is None
    assert key_of(POD, pod(**{**pod_labels("good"), "app.kubernetes.io/component": "gateway"})) is None


async def test_the_image_is_pinned_before_anything_is_made() -> None:
    server = Server()
    await reconciler(server).reconcile(KEY)
    assert server.writes[0] == "LLMService/status"
    assert server.writes[1:4] == ["Service", "PodDisruptionBudget", "Deployment"]
    assert server.service["status"]["engineImage"] == "engine:1"


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
    counts = dict.fromkeys(("replicas", "updatedReplicas", "readyReplicas", "availableReplicas"), 1)
    server.live["Deployment"]["status"] = {"observedGeneration": 1, **counts}
    server.indexes["deployments"][KEY] = [trimmed(CHILD["Deployment"], server.live["Deployment"])]
    await operator.reconcile(KEY)
    before = {kind: server.condition(kind) for kind in ("Available", "ModelLoaded", "ScalingActive")}
    assert before["Available"]["status"] == "True"
    server.service["spec"]["model"] = {"source": {"future": {}}}
    await operator.reconcile(KEY)
    assert {kind: server.condition(kind) for kind in before} == before
    assert (server.reason("Ready"), server.reason("Degraded")) == ("Invalid", "Invalid")
    assert "spec.model.source.future" in server.condition("Ready")["message"]


SHAPELESS = [
    "x",
    [1],
    {"conditions": "x"},
    {"conditions": [1, {}]},
    {"conditions": {"type": "Ready"}},
    {"conditions": [{"type": "Ready", "status": "True"}]},
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


def with_pods(server: Server, ready: int) -> None:
    """Set the counts of the Deployment's controller."""
    counts = {"replicas": 1, "updatedReplicas": 1, "readyReplicas": ready, "availableReplicas": ready}
    generation = server.live["Deployment"]["metadata"]["generation"]
    server.live["Deployment"]["status"] = {"observedGeneration": generation, **counts}
    server.indexes["deployments"][KEY] = [trimmed(CHILD["Deployment"], server.live["Deployment"])]


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
    assert server.condition("Degraded")["message"] == "a policy says no"


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


OTHER = {"apiVersion": "octavo.dev/v1alpha1", "kind": "LLMService", "name": "other", "uid": "u9", "controller": True}


@pytest.mark.parametrize(
    ("owners", "words"),
    [
        ([], "is not this LLMService's; rename the LLMService, or delete that object"),
        ([OTHER], "is not this LLMService's but that of LLMService other; rename the LLMService, or delete its owner"),
    ],
    ids=["no owner", "another LLMService"],
)
async def test_the_owner_of_a_taken_name_is_reported(owners: list[dict[str, Any]], words: str) -> None:
    server = Server()
    metadata = {"uid": "theirs", "generation": 1, "resourceVersion": "1", "ownerReferences": owners}
    server.live["Service"] = {"kind": "Service", "metadata": metadata, "spec": {}}
    server.failures["PodDisruptionBudget"] = ApiError(403, "Forbidden", "a policy says no")
    operator = reconciler(server)
    with pytest.raises(ApiError) as raised:
        await operator.reconcile(KEY)
    assert raised.value.within == 15, "no event says that the name is free"
    assert (server.reason("Ready"), server.reason("Degraded")) == ("NameTaken", "NameTaken")
    assert words in server.condition("Ready")["message"]
    del server.live["Service"]
    server.failures.clear()
    await operator.reconcile(KEY)
    assert server.reason("Degraded") == "AsExpected"


THEIRS = {"metadata": {"uid": "theirs", "generation": 1, "resourceVersion": "1"}, "spec": {}}


async def test_an_autoscaler_never_scales_a_deployment_of_another_owner() -> None:
    server = Server(autoscaling=AUTOSCALED["autoscaling"])
    server.live["Deployment"] = {"kind": "Deployment", **THEIRS}
    operator = reconciler(server)
    with pytest.raises(ApiError, match="Deployment good exists and is not this LLMService's"):
        await operator.reconcile(KEY)
    assert "Service" in server.writes
    assert "HorizontalPodAutoscaler" not in server.writes
    del server.live["Deployment"]
    await operator.reconcile(KEY)
    assert "HorizontalPodAutoscaler" in server.writes
    server.live["Deployment"] = {"kind": "Deployment", **THEIRS}  # ours was deleted, and theirs was quicker
    del server.indexes["deployments"][KEY]
    with pytest.raises(ApiError, match="is not this LLMService's"):
        await operator.reconcile(KEY)
    assert server.writes[-2:] == ["delete HorizontalPodAutoscaler", "LLMService/status"]


async def test_no_pod_writes_to_a_claim_of_another_owner() -> None:
    server = Server(cache={"type": "PersistentVolumeClaim", "size": "1Gi"})
    server.live["PersistentVolumeClaim"] = {"kind": "PersistentVolumeClaim", **THEIRS}
    operator = reconciler(server)
    with pytest.raises(ApiError, match="PersistentVolumeClaim good-cache exists and is not this LLMService's"):
        await operator.reconcile(KEY)
    assert "Deployment" not in server.writes
    assert (server.reason("Ready"), server.reason("Stalled")) == ("NameTaken", "NameTaken")
    server.service["spec"]["suspend"] = True
    with pytest.raises(ApiError, match="is not this LLMService's"):
        await operator.reconcile(KEY)
    assert server.live["Deployment"]["spec"]["replicas"] == 0


@pytest.mark.parametrize("status", [0, 403, 500])
async def test_nothing_is_made_for_a_name_that_is_not_known_to_be_ours(status: int) -> None:
    """One failed read of a claim must make no pods that would write to another service's."""
    server = Server(cache={"type": "PersistentVolumeClaim", "size": "1Gi"}, autoscaling=AUTOSCALED["autoscaling"])
    server.live["PersistentVolumeClaim"] = {"kind": "PersistentVolumeClaim", **THEIRS}
    server.unread["PersistentVolumeClaim"] = ApiError(status, "x", "not now")
    operator = reconciler(server)
    with pytest.raises(ApiError, match="not now"):
        await operator.reconcile(KEY)
    assert "Service" in server.writes
    assert not {"Deployment", "HorizontalPodAutoscaler"} & set(server.writes)
    server.unread.clear()
    with pytest.raises(ApiError, match="is not this LLMService's"):
        await operator.reconcile(KEY)
    del server.live["PersistentVolumeClaim"]
    await operator.reconcile(KEY)
    assert server.live.keys() >= {"PersistentVolumeClaim", "Deployment", "HorizontalPodAutoscaler"}


async def test_what_exists_goes_on_while_a_claim_that_was_ours_cannot_be_read() -> None:
    server = Server(cache={"type": "PersistentVolumeClaim", "size": "1Gi"}, replicas=1)
    operator = reconciler(server)
    await operator.reconcile(KEY)
    server.remove("PersistentVolumeClaim")
    server.unread["PersistentVolumeClaim"] = ApiError(503, "x", "not now")
    server.service["spec"]["replicas"] = 2
    with pytest.raises(ApiError, match="not now"):
        await operator.reconcile(KEY)
    assert server.live["Deployment"]["spec"]["replicas"] == 2


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


async def test_a_claim_that_others_have_enlarged_stays_as_large(clock: Clock) -> None:
    """As an administrator or an autoresizer does; it cannot shrink, and asking for that would be refused for ever."""
    server = Server(cache={"type": "PersistentVolumeClaim", "size": "10Gi"})
    operator = await settled(server)
    for size, expected in (("20Gi", "20Gi"), ("5Gi", "10Gi")):
        server.change("PersistentVolumeClaim", {"spec": {"resources": {"requests": {"storage": size}}}}, "autoresizer")
        await operator.reconcile(KEY)
        assert server.live["PersistentVolumeClaim"]["spec"]["resources"]["requests"]["storage"] == expected
        clock.now += 1000
    server.change("PersistentVolumeClaim", {"spec": {"resources": {"requests": {"storage": "20Gi"}}}}, "autoresizer")
    server.service["spec"]["cache"]["size"] = "30Gi"
    await operator.reconcile(KEY)
    assert server.live["PersistentVolumeClaim"]["spec"]["resources"]["requests"]["storage"] == "30Gi"
    assert server.reason("Degraded") == "AsExpected"


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
    counts = dict.fromkeys(("replicas", "updatedReplicas", "readyReplicas", "availableReplicas"), 1)
    server.live["Deployment"]["status"] = {"observedGeneration": 1, **counts}
    server.indexes["deployments"][KEY] = [trimmed(CHILD["Deployment"], server.live["Deployment"])]
    await operator.reconcile(KEY)
    assert server.reason("Progressing") == "Deployed"
    server.service["spec"]["engine"] = {"maxModelLength": 77}
    server.lagging = {"deployments"}
    for _ in range(2):
        await operator.reconcile(KEY)
        assert (server.reason("Progressing"), server.reason("Ready")) == ("Deploying", "RollingOut")


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
    operator._clock = lambda: "2026-01-01T00:00:00Z"  # the test holds on a machine on which a pass takes seconds
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


def test_another_operator_of_octavo_is_reported_as_such() -> None:
    fields = {"f:metadata": {"f:annotations": {"f:octavo.dev/applied": {}}}}
    ours = [{"manager": "octavo-operator", "operation": "Apply", "fieldsV1": fields}]
    live = {"metadata": {"annotations": {"octavo.dev/applied": "other"}, "managedFields": ours}}
    path = ("metadata", "annotations", "octavo.dev/applied")
    assert others(live, path) == "a second Octavo operator (stop one of them)"
    ours.append({"manager": "kubectl", "operation": "Update", "fieldsV1": fields})
    assert others(live, path) == "kubectl"


@pytest.mark.parametrize(
    ("spec", "who"), [({"replicas": 0}, "another client"), ({}, "another client, which removed it")]
)
def test_a_change_without_a_manager_is_called_a_removal_only_where_the_field_is_gone(
    spec: dict[str, Any], who: str
) -> None:
    """The API server records no manager of replicas that `kubectl scale` has set to 0."""
    assert others({"metadata": {"managedFields": []}, "spec": spec}, ("spec", "replicas")) == who


async def test_a_crd_that_is_older_than_the_operator_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Server-side apply refuses a status with a field that the CRD does not have, as a whole."""
    server = Server()
    server.not_in_crd = {"desiredReplicas", "loading"}
    operator = await settled(server)
    assert "Deployment" in server.live
    assert server.service["status"].keys().isdisjoint(server.not_in_crd)
    assert server.reason("Degraded") == "AsExpected"
    await operator.reconcile(KEY)
    assert server.writes == []
    server.not_in_crd.clear()  # it is upgraded, which is tried from time to time
    monkeypatch.setattr(status_writer, "UNKNOWN_SECONDS", 0.0)
    await operator.reconcile(KEY)
    assert "desiredReplicas" in server.service["status"]


async def test_a_child_that_is_about_to_go_is_waited_for_and_reported_if_it_stays() -> None:
    """A Deployment with a finalizer that no controller removes is such a case."""
    server = Server()
    operator = await settled(server)
    going = {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["example.com/lost"]}
    server.live["Deployment"]["metadata"] |= going
    server.indexes["deployments"][KEY] = [trimmed(CHILD["Deployment"], server.live["Deployment"])]
    for second, reported in ((0, False), (60, True)):
        operator._clock = lambda second=second: f"2026-01-01T00:{second // 60:02}:{second % 60:02}Z"  # type: ignore[misc]
        with pytest.raises(ApiError, match=r"example\.com/lost holds it"):
            await operator.reconcile(KEY)
        assert (server.reason("Ready") == "ApplyFailed") == reported
    assert "remove the finalizer" in server.condition("Degraded")["message"]
    assert [each for each in server.writes if each != "LLMService/status"] == []
    server.remove("Deployment")
    await operator.reconcile(KEY)
    assert "deletionTimestamp" not in server.live["Deployment"]["metadata"]
    assert server.reason("Degraded") == "AsExpected"


@pytest.mark.parametrize(
    ("kind", "finalizer", "words"),
    [
        ("PersistentVolumeClaim", "kubernetes.io/pvc-protection", r"pods use it: set spec\.suspend to true"),
        ("Deployment", "foregroundDeletion", "Kubernetes waits until what belongs to it has ended"),
    ],
)
async def test_what_kubernetes_itself_holds_is_not_to_lose_its_finalizer(kind: str, finalizer: str, words: str) -> None:
    server = Server(cache={"type": "PersistentVolumeClaim", "size": "1Gi"})
    operator = await settled(server)
    live = server.live[kind]
    live["metadata"] |= {"deletionTimestamp": "2026-01-01T12:00:00Z", "finalizers": [finalizer]}
    server.indexes[CHILD[kind].plural][KEY] = [trimmed(CHILD[kind], live)]
    with pytest.raises(ApiError, match=f"{finalizer} holds it: {words}") as found:
        await operator.reconcile(KEY)
    assert "remove the finalizer" not in str(found.value)


def made_again(server: Server) -> None:
    """The LLMService was deleted and made again at once: its children are not deleted yet."""
    server.service["metadata"]["uid"] = "u2"
    server.writes.clear()


def owners(server: Server, kind: str, *owned_by: dict[str, Any]) -> None:
    """Another client writes the owners of a child."""
    server.live[kind]["metadata"]["ownerReferences"] = list(owned_by)
    server.indexes[CHILD[kind].plural][KEY] = [trimmed(CHILD[kind], server.live[kind])]


async def test_what_a_deleted_namesake_has_left_is_deleted_and_made_again() -> None:
    """The garbage collector does it within minutes, or not at all while an aggregated API does not answer."""
    server = Server(autoscaling={"maxReplicas": 3}, replicas=GONE)
    await reconciler(server).reconcile(KEY)
    assert "HorizontalPodAutoscaler" in server.live
    made_again(server)
    del server.service["spec"]["autoscaling"]
    await reconciler(server).reconcile(KEY)
    made = ["Service", "PodDisruptionBudget", "Deployment"]
    children = list(dict.fromkeys(each for each in server.writes if each != "LLMService/status"))
    assert children == [*(write for each in made for write in (f"delete {each}", each)), DELETED_SCALER]
    assert {each["metadata"]["ownerReferences"][0]["uid"] for each in server.live.values()} == {"u2"}
    assert server.reason("Degraded") == "AsExpected"


async def test_only_unowned_children_are_deleted_as_left_over() -> None:
    """Not what another kind, another group or an object that may live owns too, nor what has changed meanwhile."""
    server = Server()
    await reconciler(server).reconcile(KEY)
    (ours,) = server.live["Service"]["metadata"]["ownerReferences"]
    foreign = ({**ours, "apiVersion": "example.com/v1"}, {**ours, "kind": "Bundle"}, {**ours, "name": "another"})
    made_again(server)
    for each in foreign:
        owners(server, "Service", each)
        with pytest.raises(ApiError, match="is not this LLMService's"):
            await reconciler(server).reconcile(KEY)
        owners(server, "Service", ours, {**each, "controller": False})
        with pytest.raises(ApiError, match="garbage collector"):
            await reconciler(server).reconcile(KEY)
    assert "delete Service" not in server.writes
    owners(server, "Service", ours)
    server.live["Service"]["metadata"]["resourceVersion"] = "999"  # it has changed, and the watch is behind
    with pytest.raises(ApiError, match="garbage collector"):
        await reconciler(server).reconcile(KEY)
    assert "Service" in server.live


async def test_what_the_llmservice_that_lives_owns_is_not_deleted_where_the_watch_is_behind() -> None:
    """The watch shows the LLMService that was deleted; the children are of its namesake already."""
    server = Server()
    await reconciler(server).reconcile(KEY)
    behind = copy.deepcopy(server.service)
    made_again(server)
    (ours,) = server.live["Service"]["metadata"]["ownerReferences"]
    for kind in list(server.live):
        owners(server, kind, {**ours, "uid": "u2"})
    living, server.indexes[LLMSERVICE.plural][KEY] = server.service, [behind]
    server.named = living
    with pytest.raises(ApiError, match="garbage collector"):
        await reconciler(server).reconcile(KEY)
    assert [each for each in server.writes if each.startswith("delete")] == []


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


async def test_a_status_that_comes_too_late_is_no_failure() -> None:
    server = Server()
    await reconciler(server).reconcile(KEY)
    server.failures["LLMService/status"] = ApiError(404, "NotFound", "gone")
    server.service["spec"]["suspend"] = True
    server.named = merged(server.service, {"metadata": {"uid": "made again"}})
    await reconciler(server).reconcile(KEY)


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
    """The image is pinned in the status first; where that fails for long, the Deployment says which it was."""
    server, clock = Server(), Clock()
    operator = reconciler(server)
    operator._statuses = status_writer.StatusWriter(server, clock)
    server.failures["LLMService/status"] = ApiError(500, "InternalError", "failed calling webhook: deadline exceeded")
    for second, writes in ((0.0, []), (29.0, []), (31.0, ["Service", "PodDisruptionBudget", "Deployment"])):
        clock.now = second
        with pytest.raises(ApiError, match="failed calling webhook"):
            await operator.reconcile(KEY)
        assert server.writes == writes


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


async def test_a_service_that_is_being_deleted_is_left_alone() -> None:
    server = Server()
    server.service["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    await reconciler(server).reconcile(KEY)
    assert server.writes == []


async def test_a_service_that_anothers_finalizer_holds_is_reported_as_it_is() -> None:
    """It may serve on for days, and its pods may end meanwhile."""
    server = Server()
    operator = await settled(server)
    metadata = {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["example.com/hold"]}
    server.service["metadata"].update(metadata)
    server.change("Deployment", {"spec": {"paused": True}})
    await operator.reconcile(KEY)
    assert server.writes == ["LLMService/status"]
    assert {server.reason(kind) for kind in ("Ready", "Degraded", "Stalled")} == {"BeingDeleted"}
    assert "example.com/hold holds it" in server.condition("Degraded")["message"]
    await operator.reconcile(KEY)
    assert server.writes == ["LLMService/status"]
    with_pods(server, 1)
    await operator.reconcile(KEY)
    assert (server.reason("Ready"), server.reason("Stalled")) == ("Serving", "BeingDeleted")


async def test_of_a_deletion_in_the_foreground_it_is_said_at_once_whether_pods_still_serve() -> None:
    """Pods may take minutes to end, and the Service leads to none of them meanwhile."""
    server = Server()
    await settled(server)
    with_pods(server, 1)
    operator = Reconciler(server, server.indexes, RenderConfig("engine:1"), clock=lambda: "2026-01-01T00:00:05Z")
    asked = {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["foregroundDeletion"]}
    server.service["metadata"].update(asked)
    await operator.reconcile(KEY)
    assert server.reason("Ready") == "Serving"
    server.indexes["pods"].clear()
    server.indexes["deployments"].clear()
    await operator.reconcile(KEY)
    ready = server.condition("Ready")
    assert (ready["status"], ready["reason"]) == ("False", "BeingDeleted")
    assert "is being deleted (asked for at 2026-01-01T00:00:00Z)" in ready["message"]
    assert (server.reason("Stalled"), server.reason("Degraded")) == ("AsExpected", "AsExpected")
    assert set(server.writes) == {"LLMService/status"}


async def test_a_finalizer_of_a_child_that_holds_a_deletion_in_the_foreground_is_reported_once_it_lasts() -> None:
    server = Server()
    await settled(server)
    now, asked = "2026-01-01T00:00:50Z", "2026-01-01T00:00:00Z"
    operator = Reconciler(server, server.indexes, RenderConfig("engine:1"), clock=lambda: now)
    going = {"deletionTimestamp": asked, "finalizers": ["foregroundDeletion"]}
    server.service["metadata"].update(going)
    held = {**going, "finalizers": ["example.com/hold", "foregroundDeletion"]}
    server.indexes["deployments"][KEY][0]["metadata"].update(held)
    assert await operator.reconcile(KEY) == 11
    assert server.reason("Degraded") == "AsExpected"
    now = "2026-01-01T00:01:01Z"
    assert await operator.reconcile(KEY) is None
    assert server.reason("Degraded") == "BeingDeleted"
    assert "Deployment good (example.com/hold) holds it" in server.condition("Degraded")["message"]


async def test_a_service_that_is_gone_is_forgotten() -> None:
    server = Server()
    first = reconciler(server)
    await first.reconcile(KEY)
    server.indexes[LLMSERVICE.plural].clear()
    server.writes.clear()
    await first.reconcile(KEY)
    assert server.writes == []


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(reconciler_module, "FieldConflicts", lambda: FieldConflicts(clock))
    return clock


async def settled(server: Server) -> Reconciler:
    """An operator that has nothing to do any more."""
    operator = reconciler(server)
    for _ in range(3):
        await operator.reconcile(KEY)
    server.writes.clear()
    return operator


async def test_what_others_change_beside_us_is_looked_at_and_not_written(clock: Clock) -> None:
    server = Server()
    operator = await settled(server)
    for seconds in range(100):
        clock.now += 1
        server.change("Deployment", {"spec": {"minReadySeconds": 5, "replicas": 1, "notOurs": seconds}})
        assert await operator.reconcile(KEY) is None
    assert server.writes == []


async def test_drift_is_mended_at_once_and_a_conflict_once_a_minute(clock: Clock) -> None:
    server = Server()
    operator = await settled(server)
    mended = 0
    for seconds in range(180):
        clock.now += 1
        server.change("Deployment", {"spec": {"minReadySeconds": 99}}, "argocd")
        again = await operator.reconcile(KEY)
        mended += server.live["Deployment"]["spec"]["minReadySeconds"] == 5
        assert (again is None) == (seconds == 0)
    assert mended == 3
    found = server.condition("Degraded")
    assert (found["status"], found["reason"]) == ("True", "FieldConflict")
    assert "Deployment good" in found["message"]
    assert "spec.minReadySeconds by argocd" in found["message"]
    assert server.reason("Ready") != "FieldConflict"


async def test_what_a_webhook_writes_anew_at_each_write_is_no_conflict(clock: Clock) -> None:
    """Such a value is the time of the last change; a dry run shows it too."""

    class Stamped(Server):
        tries = 0

        async def apply(self, manifest: dict[str, Any], *arguments: Any, **more: Any) -> dict[str, Any]:
            self.tries += 1
            stamp = {"metadata": {"annotations": {"example.com/touched": str(self.tries)}}}
            return await super().apply(merged(manifest, stamp), *arguments, **more)

    server = Stamped()
    operator = await settled(server)
    for seconds in range(3):
        clock.now += 1
        server.change("Deployment", {"metadata": {"annotations": {"theirs": str(seconds)}}, "spec": {}})
        assert await operator.reconcile(KEY) is None
    assert server.writes == []
    server.change("Deployment", {"spec": {"minReadySeconds": 99}})
    await operator.reconcile(KEY)
    assert server.live["Deployment"]["spec"]["minReadySeconds"] == 5
    assert server.reason("Degraded") == "AsExpected"


OUR_PORT = {"name": "http", "port": 80, "targetPort": "http", "appProtocol": "http"}
BY_ADMISSION: list[tuple[str, dict[str, Any]]] = [
    ("Service", {"selector": {"mesh": "yes"}}),
    ("Service", {"ports": [{"name": "more", "port": 9999, "targetPort": 9999}, OUR_PORT]}),
    ("Deployment", {"replicas": 0}),
]


@pytest.mark.parametrize(("kind", "change"), BY_ADMISSION)
async def test_what_admission_changes_is_tried_again_once_a_minute(
    kind: str, change: dict[str, Any], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No event reports that the policy is gone."""

    class Changing(Server):
        changes = True
        tries = 0

        async def apply(self, manifest: dict[str, Any], *rest: Any, **more: Any) -> dict[str, Any]:
            if manifest["kind"] != kind:
                return await super().apply(manifest, *rest, **more)
            self.tries += 1
            return await super().apply(self.admitted(manifest), *rest, **more)

        async def put_back(self, manifest: dict[str, Any], *rest: Any, **more: Any) -> dict[str, Any]:
            return await super().put_back(self.admitted(manifest), *rest, **more)

        def admitted(self, manifest: dict[str, Any]) -> dict[str, Any]:
            if manifest["kind"] != kind or not self.changes:
                return manifest
            return {**manifest, "spec": {**manifest["spec"], **change}}

    monkeypatch.setattr(reconciler_module, "Children", functools.partial(Children, clock=clock))
    server = Changing(replicas=1)
    operator = await settled(server)
    server.tries = 0
    for _ in range(130):
        clock.now += 1
        assert (await operator.reconcile(KEY) or 0) <= 60
    assert (server.tries, server.writes) == (2, [])
    server.unread[kind] = ApiError(403, "Forbidden", "not now")
    clock.now += 60
    for _ in range(2):
        with pytest.raises(ApiError, match="not now") as refused:
            server.change(kind, {"spec": {"notOurs": clock.now}})
            clock.now += 1
            await operator.reconcile(KEY)
        assert refused.value.within == 60, "not at once"
    server.unread.clear()
    server.changes = False
    clock.now += 60
    await operator.reconcile(KEY)
    assert kind in server.writes
    assert change.items() != {name: server.live[kind]["spec"][name] for name in change}.items()


async def test_what_another_manager_adds_to_the_selector_of_the_service_is_removed(clock: Clock) -> None:
    server = Server()
    operator = await settled(server)
    before = server.live["Service"]["spec"]["selector"]
    server.change("Service", {"spec": {"selector": {"nobody": "has-this"}}})
    await operator.reconcile(KEY)
    assert server.live["Service"]["spec"]["selector"] == before
    assert server.writes == ["Service"]


ADDED = [
    ("Service", {"publishNotReadyAddresses": True}),
    ("PodDisruptionBudget", {"minAvailable": 1, "maxUnavailable": GONE}),  # the API server takes only one of these
    ("PodDisruptionBudget", {"minAvailable": 1}),
    ("Deployment", {"template": {"spec": {"nodeSelector": {"no-such": "node"}}}}),
]


def fields_of(value: Any) -> dict[str, Any]:
    """FieldsV1 of all that is in `value` and stays."""
    return {f"f:{name}": fields_of(inner) for name, inner in value.items()} if isinstance(value, dict) else {}


@pytest.mark.parametrize(("kind", "change"), ADDED)
@pytest.mark.parametrize("remembers", [True, False])
async def test_fields_that_others_add_where_all_is_ours_are_removed(
    kind: str, change: dict[str, Any], remembers: bool, clock: Clock
) -> None:
    server = Server()
    operator = await settled(server)
    before = copy.deepcopy(server.live[kind]["spec"])

    def changed() -> None:
        server.change(kind, {"spec": change}, "argocd")
        kept = {name: value for name, value in change.items() if value is not GONE}
        server.live[kind]["metadata"]["managedFields"][0]["fieldsV1"] = {"f:spec": fields_of(kept)}
        server.indexes[CHILD[kind].plural][KEY] = [trimmed(CHILD[kind], server.live[kind])]

    changed()
    if not remembers:
        operator = reconciler(server)
    assert await operator.reconcile(KEY) is None
    assert server.live[kind]["spec"] == before
    server.writes.clear()
    await operator.reconcile(KEY)
    assert server.writes == []
    changed()
    await operator.reconcile(KEY)
    changed()
    await operator.reconcile(KEY)
    assert server.live[kind]["spec"] != before
    assert "by argocd" in server.condition("Degraded")["message"]


async def test_harmless_fields_that_others_add_to_a_service_stay(clock: Clock) -> None:
    server = Server()
    operator = await settled(server)
    server.change("Service", {"spec": {"sessionAffinity": "ClientIP"}})
    await operator.reconcile(KEY)
    assert server.live["Service"]["spec"]["sessionAffinity"] == "ClientIP"


async def test_a_service_that_another_client_has_made_headless_is_made_anew(clock: Clock) -> None:
    """A headless Service does not lead from its port to that of the pods, and its address cannot change."""
    for remembers in (True, False):
        server = Server()
        operator = await settled(server)
        server.change("Service", {"spec": {"clusterIP": "None"}})
        operator = operator if remembers else reconciler(server)
        await operator.reconcile(KEY)
        assert "clusterIP" not in server.live["Service"]["spec"]
        assert server.writes.count("delete Service") == 1
        await operator.reconcile(KEY)
        assert server.writes.count("delete Service") == 1


async def test_the_headless_service_that_another_client_has_given_an_address_is_made_anew(clock: Clock) -> None:
    """The API server refuses to take an address away, also in a dry run."""

    class Strict(Server):
        async def apply(self, manifest: dict[str, Any], *arguments: Any, **more: Any) -> dict[str, Any]:
            if self.live.get("Service", manifest)["spec"].get("clusterIP") != manifest["spec"]["clusterIP"]:
                raise ApiError(422, "Invalid", "spec.clusterIPs[0]: may not change once set")
            return await super().apply(manifest, *arguments, **more)

        async def put_back(self, manifest: dict[str, Any], *arguments: Any, **more: Any) -> dict[str, Any]:
            return await self.apply(manifest)

    server = Strict()
    service = parse(server.service)
    wanted = metrics_service(service, frozenset({"ServiceMonitor"}))
    assert wanted
    children = Children(server, FieldConflicts(clock))
    for deletions in (0, 1, 1):
        applied = await children.apply(KEY, service, observe(KEY, server.indexes), [wanted])
        assert (applied.failures, server.writes.count("delete Service")) == ({}, deletions)
        assert server.live["Service"]["spec"]["clusterIP"] == "None"
        if not deletions:
            server.change("Service", {"spec": {"clusterIP": "10.0.0.1"}})


async def test_what_is_refused_beside_nothing_of_others_is_not_tried_twice(clock: Clock) -> None:
    class Refusing(Server):
        tries = 0

        async def put_back(self, manifest: dict[str, Any], *arguments: Any, **more: Any) -> dict[str, Any]:
            self.tries += 1
            raise ApiError(422, "Invalid", "another refusal")

    server = Refusing()
    await settled(server)
    server.failures["Deployment"] = ApiError(422, "Invalid", "the refusal")
    server.service["spec"]["engine"] = {"maxConcurrentRequests": 3}
    with pytest.raises(ApiError, match="the refusal"):
        await reconciler(server).reconcile(KEY)
    assert server.tries == 1


async def test_a_conflict_with_another_autoscaler_names_what_scales(clock: Clock) -> None:
    server = Server()
    operator = await settled(server)
    for _ in range(2):
        clock.now += 1
        server.change("Deployment", {"spec": {"replicas": 2}}, "kube-controller-manager")
        await operator.reconcile(KEY)
    assert "HorizontalPodAutoscaler that is not the LLMService's scales it" in server.condition("Degraded")["message"]


async def test_a_long_conflict_is_reported_once_and_written_once_a_minute(clock: Clock) -> None:
    server = Server()
    operator = await settled(server)
    for _ in range(600):
        clock.now += 1
        server.change("Deployment", {"spec": {"minReadySeconds": 99}}, "argocd")
        await operator.reconcile(KEY)
    assert (server.writes.count("Deployment"), server.writes.count("LLMService/status")) == (10, 1)
    assert [event["reason"] for event in server.events].count("FieldConflict") == 1


async def test_a_manager_that_adds_another_field_each_time_is_a_conflict_too(clock: Clock) -> None:
    server = Server()
    operator = await settled(server)
    for seconds in range(180):
        clock.now += 1
        server.change("PodDisruptionBudget", {"spec": {f"field{seconds}": 1}}, "chaos")
        await operator.reconcile(KEY)
    assert 3 <= server.writes.count("put back PodDisruptionBudget") <= 8
    assert server.reason("Degraded") == "FieldConflict"
    assert "keeps being changed: spec by chaos" in server.condition("Degraded")["message"]


async def test_a_contested_pod_template_is_reverted_less_and_less_often(clock: Clock) -> None:
    """Each change replaces pods, which load for minutes."""
    server = Server()
    operator = await settled(server)
    ours = copy.deepcopy(server.live["Deployment"]["spec"]["template"]["spec"])
    theirs = {"template": {"spec": {"priority": 5, "terminationGracePeriodSeconds": 1}}}
    for _ in range(4 * 3600 // 30):
        clock.now += 30
        server.change("Deployment", {"spec": theirs}, "kyverno")
        await operator.reconcile(KEY)
    assert 8 <= server.writes.count("Deployment") <= 10
    assert "kyverno. It is set back less and less often, since each change" in server.condition("Degraded")["message"]
    assert server.writes.count("LLMService/status") == 1
    assert server.live["Deployment"]["spec"]["template"]["spec"] != ours


async def test_a_manager_that_changes_the_pod_template_every_ten_minutes_is_a_conflict_too(clock: Clock) -> None:
    """As some GitOps tools do: each of its changes, and each of ours, would replace all pods for ever."""
    server = Server()
    operator = await settled(server)
    theirs = {"template": {"spec": {"terminationGracePeriodSeconds": 1}}}
    for turn in range(12 * 12):
        clock.now += 300
        if turn % 2 == 0:
            server.change("Deployment", {"spec": theirs}, "flux")
        await operator.reconcile(KEY)
    assert server.writes.count("Deployment") < 20
    assert "spec.template.spec.terminationGracePeriodSeconds by flux" in server.condition("Degraded")["message"]


async def test_a_manager_that_comes_back_every_90_seconds_is_a_conflict_that_is_reported_once(clock: Clock) -> None:
    """GitOps tools do so: each change is reverted at once, and none is the last."""
    server = Server()
    operator = await settled(server)
    for seconds in range(900):
        clock.now += 1
        if seconds % 90 == 0:
            server.change("Deployment", {"spec": {"minReadySeconds": 99}}, "flux")
        await operator.reconcile(KEY)
    assert (server.writes.count("Deployment"), server.writes.count("LLMService/status")) == (10, 1)
    assert server.reason("Degraded") == "FieldConflict"


async def test_a_conflict_over_one_field_keeps_no_other_from_being_mended_at_once(clock: Clock) -> None:
    server = Server()
    operator = await settled(server)

    def spec() -> tuple[Any, Any]:
        found = server.live["Deployment"]["spec"]
        return found["minReadySeconds"], found["replicas"]

    for _ in range(2):
        server.change("Deployment", {"spec": {"minReadySeconds": 99}})
        await operator.reconcile(KEY)
    clock.now += 5
    server.change("Deployment", {"spec": {"replicas": 7}})
    assert await operator.reconcile(KEY) == 55
    assert spec() == (99, 1)
    writes = server.writes.count("Deployment")
    await operator.reconcile(KEY)
    assert server.writes.count("Deployment") == writes
    clock.now += 55
    await operator.reconcile(KEY)
    assert spec() == (5, 1)


async def test_a_conflict_ends(clock: Clock) -> None:
    server = Server()
    operator = await settled(server)
    for _ in range(2):
        server.change("Service", {"spec": {"type": "NodePort"}})
        again = await operator.reconcile(KEY)
    assert server.reason("Degraded") == "FieldConflict"
    assert again == 60
    clock.now += again
    again = await operator.reconcile(KEY)
    assert server.live["Service"]["spec"]["type"] == "ClusterIP"
    while again is not None:
        assert server.reason("Degraded") == "FieldConflict"
        clock.now += again
        again = await operator.reconcile(KEY)
    assert server.reason("Degraded") == "AsExpected"
    assert clock.now == 1000 + 60 + 180


async def test_a_mend_that_fails_is_none(clock: Clock) -> None:
    """Else what is to be tried again in a second would be held back for a minute."""
    server = Server()
    operator = await settled(server)
    server.change("Service", {"spec": {"type": "NodePort"}})
    server.refuses_writes = True
    with pytest.raises(ApiError):
        await operator.reconcile(KEY)
    server.refuses_writes = False
    assert await operator.reconcile(KEY) is None
    assert server.live["Service"]["spec"]["type"] == "ClusterIP"


async def test_what_the_user_asks_for_is_written_in_the_midst_of_a_conflict(clock: Clock) -> None:
    server = Server()
    operator = await settled(server)
    for _ in range(2):
        server.change("Service", {"spec": {"type": "NodePort"}})
        await operator.reconcile(KEY)
    server.service["spec"]["service"] = {"type": "LoadBalancer"}
    await operator.reconcile(KEY)
    assert server.live["Service"]["spec"]["type"] == "LoadBalancer"
    assert server.reason("Degraded") == "AsExpected"


async def test_a_child_that_is_deleted_comes_again_but_not_all_the_time(clock: Clock) -> None:
    server = Server()
    operator = await settled(server)
    made = 0
    for _ in range(180):
        clock.now += 1
        if "Service" in server.live:
            server.remove("Service")
        await operator.reconcile(KEY)
        made += "Service" in server.live
    assert made == 3
    assert "keeps being deleted by another client. It is made again" in server.condition("Degraded")["message"]


@pytest.mark.parametrize(
    "ports",
    [
        [{"name": "http", "port": 81, "targetPort": 1}],  # beside ours it is refused: two have one name
        [{"name": "other", "port": 81, "targetPort": 1}],
        [{"name": "http", "port": 80, "targetPort": 1}],
        [],  # as with type ExternalName
        [{"name": "http", "port": 80, "targetPort": "http"}, {"name": "other", "port": 81, "targetPort": "http"}],
    ],
)
@pytest.mark.parametrize("remembers", [True, False])
async def test_ports_that_others_replace_are_put_back_as_a_whole_at_once(
    ports: list[dict[str, Any]], remembers: bool, clock: Clock
) -> None:
    server = Server()
    operator = await settled(server)
    before = copy.deepcopy(server.live["Service"]["spec"]["ports"])
    server.change("Service", {"spec": {"ports": ports}})
    if not remembers:
        operator = reconciler(server)
    assert await operator.reconcile(KEY) is None
    assert server.live["Service"]["spec"]["ports"] == before
    server.writes.clear()
    await operator.reconcile(KEY)
    assert server.writes == []


async def test_ports_that_others_keep_adding_are_a_conflict(clock: Clock) -> None:
    server = Server()
    operator = await settled(server)
    for _ in range(3):
        clock.now += 1
        server.change("Service", {"spec": {"ports": [{"name": "http", "port": 81, "targetPort": 1}]}}, "argocd")
        await operator.reconcile(KEY)
    assert server.writes.count("put back Service") == 1
    assert "spec.ports[0].port by argocd" in server.condition("Degraded")["message"]


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


async def test_a_change_of_labels_is_reverted_though_it_changes_no_generation() -> None:
    server = Server()
    operator = await settled(server)
    live = copy.deepcopy(server.live["Deployment"])
    live["metadata"]["labels"]["app.kubernetes.io/name"] = "other"
    server._store("Deployment", live)
    await operator.reconcile(KEY)
    assert server.writes == ["Deployment"]
    assert server.live["Deployment"]["metadata"]["labels"]["app.kubernetes.io/name"] == "octavo"


async def test_a_deployment_that_another_manager_pauses_goes_on(clock: Clock) -> None:
    server = Server()
    operator = await settled(server)
    server.change("Deployment", {"spec": {"paused": True}}, "kubectl-rollout")
    await operator.reconcile(KEY)
    assert not server.live["Deployment"]["spec"]["paused"]
    assert server.reason("Degraded") == "AsExpected"
    server.change("Deployment", {"spec": {"paused": True}}, "kubectl-rollout")
    await operator.reconcile(KEY)
    assert "spec.paused by kubectl-rollout" in server.condition("Degraded")["message"]


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_deployment_that_is_paused_is_so_no_longer_when_its_spec_changes(restarts: bool) -> None:
    server = Server()
    operator = await settled(server)
    server.change("Deployment", {"spec": {"paused": True}}, "kubectl-rollout")
    server.indexes[LLMSERVICE.plural][KEY] = [merged(server.service, {"spec": {"rollout": {"drainTimeoutSeconds": 7}}})]
    await (reconciler(server) if restarts else operator).reconcile(KEY)
    assert not server.live["Deployment"]["spec"]["paused"]


async def test_a_pause_that_the_spec_asks_for_stays() -> None:
    server = Server(rollout={"paused": True})
    operator = await settled(server)
    await operator.reconcile(KEY)
    assert server.live["Deployment"]["spec"]["paused"]


def test_a_child_is_its_owners_whatever_its_label_says() -> None:
    owner = {"kind": "LLMService", "name": "good", "uid": "u1", "controller": True}
    metadata = {"namespace": "llm", "name": "good", "labels": {SERVICE_LABEL: "other"}, "ownerReferences": [owner]}
    assert key_of(CHILD["Deployment"], {"metadata": metadata}) == KEY
    assert key_of(CHILD["Deployment"], {"metadata": {**metadata, "ownerReferences": []}}) == ("llm", "other")


async def test_what_the_deployments_controller_notes_is_no_change() -> None:
    server = Server()
    operator = await settled(server)
    live = copy.deepcopy(server.live["Deployment"])
    live["metadata"]["annotations"]["deployment.kubernetes.io/revision"] = "7"
    live["status"] = {"replicas": 1}
    server._store("Deployment", live)
    await operator.reconcile(KEY)
    assert "Deployment" not in server.writes


async def test_a_watch_that_is_behind_causes_no_write() -> None:
    server = Server()
    operator = await settled(server)
    server.lagging = {"deployments"}
    server.service["spec"]["engine"] = {"maxModelLength": 77}
    await operator.reconcile(KEY)
    server.writes.clear()
    await operator.reconcile(KEY)
    await operator.reconcile(KEY)
    assert [what for what in server.writes if what != "LLMService/status"] == []


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


AUTOSCALED = {"autoscaling": {"minReplicas": 3, "maxReplicas": 8}}


async def test_a_deployment_is_made_with_its_lower_bound_before_its_autoscaler() -> None:
    server = Server(**AUTOSCALED)
    await reconciler(server).reconcile(KEY)
    assert server.live["Deployment"]["spec"]["replicas"] == 3
    kinds = [what for what in server.writes if "/" not in what]
    assert kinds.index("Deployment") < kinds.index("HorizontalPodAutoscaler")
    assert server.reason("ScalingActive") == "AutoscalerPending"


async def test_without_a_metrics_api_for_keda_the_message_says_that_nothing_scales() -> None:
    server = Server(autoscaling={**AUTOSCALED["autoscaling"], "metricsSource": "KEDA"})
    await Reconciler(server, server.indexes, RenderConfig("engine:1", metrics_url="")).reconcile(KEY)
    assert not {"ScaledObject", "HorizontalPodAutoscaler"} & set(server.live)
    found = server.condition("ScalingActive")
    assert (found["status"], found["reason"]) == ("False", "AutoscalerFailed")
    assert "KEDA would ask Octavo's metrics API, and the operator knows of none" in found["message"]


async def test_what_an_autoscaler_writes_is_no_drift() -> None:
    server = Server(**AUTOSCALED)
    operator = reconciler(server)
    await operator.reconcile(KEY)
    server.change("Deployment", {"spec": {"replicas": 7}}, "kube-controller-manager")
    await operator.reconcile(KEY)
    assert server.live["Deployment"]["spec"]["replicas"] == 7
    assert server.service["status"]["desiredReplicas"] == 7


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
    operator = Reconciler(server, server.indexes, RenderConfig("engine:1", host_paths=frozenset()))
    server.service["spec"].update(spec)

    async def paced(*_: Any) -> float:
        return 7.0

    monkeypatch.setattr(operator._statuses, "write", paced)
    assert await operator.reconcile(KEY) == 7.0


async def test_a_new_leader_that_scales_by_itself_writes_no_status_before_it_has_measured() -> None:
    server, reports = Server(**AUTOSCALED), dict[Any, Any]()
    leaders = [
        Reconciler(server, server.indexes, RenderConfig("engine:1", scales_directly=True), scaling=known)
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


async def test_a_long_refusal_breaks_no_status() -> None:
    """The API server says of each field what is wrong with it, and the CRD bounds a condition's message."""
    server = Server()
    server.failures["Deployment"] = ApiError(422, "Invalid", "x" * 42_000)
    operator = reconciler(server)
    for _ in range(2):
        with pytest.raises(ApiError):
            await operator.reconcile(KEY)
    assert server.reason("Degraded") == "ApplyFailed"
    assert len(server.condition("Degraded")["message"]) == 4096


async def test_a_deployment_of_none_that_no_autoscaler_would_ever_scale_is_started_again() -> None:
    server = Server(**AUTOSCALED)
    operator = reconciler(server)
    await operator.reconcile(KEY)
    server.change("Deployment", {"spec": {"replicas": 0}})
    await operator.reconcile(KEY)
    assert server.live["Deployment"]["spec"]["replicas"] == 3


async def test_the_autoscaler_goes_before_the_spec_sets_the_number() -> None:
    server = Server(**AUTOSCALED)
    operator = reconciler(server)
    await operator.reconcile(KEY)
    server.change("Deployment", {"spec": {"replicas": 7}}, "kube-controller-manager")
    await operator.reconcile(KEY)
    del server.service["spec"]["autoscaling"]
    server.service["spec"]["replicas"] = 5
    await operator.reconcile(KEY)
    assert "HorizontalPodAutoscaler" not in server.live
    assert server.live["Deployment"]["spec"]["replicas"] == 7
    await operator.reconcile(KEY)
    assert server.live["Deployment"]["spec"]["replicas"] == 5


async def test_an_autoscaler_that_may_not_be_deleted_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(**AUTOSCALED)
    operator = reconciler(server)
    await operator.reconcile(KEY)
    monkeypatch.setattr(server, "delete", refusal)
    server.service["spec"].pop("autoscaling")
    with pytest.raises(ApiError):
        await operator.reconcile(KEY)
    assert server.reason("ScalingActive") == "AutoscalerPending"
    assert "waits until HorizontalPodAutoscaler good is deleted" in server.condition("ScalingActive")["message"]


async def refusal(*_: Any) -> None:
    raise ApiError(403, "Forbidden", "denied request")


async def test_replicas_that_admission_changes_are_reported_and_not_written_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Server(replicas=1)
    apply = server.apply

    async def with_two_replicas(manifest: dict[str, Any], *arguments: Any, **more: Any) -> dict[str, Any]:
        if manifest["kind"] == "Deployment":
            manifest = merged(manifest, {"spec": {"replicas": 2}})
        return await apply(manifest, *arguments, **more)

    monkeypatch.setattr(server, "apply", with_two_replicas)
    await settled(server)
    assert (server.reason("Degraded"), server.reason("Stalled")) == ("FieldConflict", "FieldConflict")
    assert "has 2 replicas though it was applied with 1" in server.condition("Degraded")["message"]


async def test_a_pass_asks_to_be_repeated_when_a_schedule_begins_or_ends() -> None:
    schedule = {"name": "s", "start": "0 8 * * *", "duration": "2h", "minReplicas": 4, "maxReplicas": 9}
    server = Server(autoscaling={**AUTOSCALED["autoscaling"], "schedules": [schedule]})
    operator = reconciler(server)
    for now, seconds, least in (("07:00:00", 3601, 3), ("08:00:00", 7201, 4), ("10:00:00", 79_201, 3)):
        operator._clock = lambda now=now: f"2026-01-01T{now}Z"  # type: ignore[misc]
        assert await operator.reconcile(KEY) == seconds
        assert server.live["HorizontalPodAutoscaler"]["spec"]["minReplicas"] == least


def scaled_object(**metadata: Any) -> dict[str, Any]:
    owner = {"kind": "LLMService", "name": "good", "uid": "u1", "controller": True}
    return {"metadata": {"name": "good", "uid": "s1", "ownerReferences": [owner], **metadata}}


async def test_what_is_being_deleted_is_not_deleted_again_and_the_wait_is_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """KEDA's finalizer holds a ScaledObject forever once KEDA is gone."""
    server = Server()
    operator = await settled(server)
    server.indexes["scaledobjects"] = {KEY: [scaled_object(deletionTimestamp="2026-01-01T00:00:00Z")]}
    server.service["spec"]["replicas"] = 5
    with caplog.at_level("INFO"):
        for _ in range(3):
            await operator.reconcile(KEY)
    assert not [what for what in server.writes if what.startswith("delete")]
    assert "no longer needed" not in caplog.text
    assert server.condition("ScalingActive")["message"].startswith(
        "waits until ScaledObject good is deleted, then sets 5 replicas; "
    )
    server.indexes["scaledobjects"].clear()
    await operator.reconcile(KEY)
    assert server.live["Deployment"]["spec"]["replicas"] == 5
    assert server.condition("ScalingActive")["message"] == "the number of replicas is fixed at 5 (spec.replicas)"


async def test_what_keda_makes_of_a_scaled_object_is_seen() -> None:
    server = Server(autoscaling={**AUTOSCALED["autoscaling"], "metricsSource": "KEDA"})
    operator = reconciler(server)
    made_by = {"kind": "ScaledObject", "name": "good", "uid": "s1", "controller": True}
    metadata = {"name": "keda-hpa-good", "namespace": "llm", "uid": "h1", "ownerReferences": [made_by]}
    looked = [{"type": kind, "status": "True", "reason": "x"} for kind in ("AbleToScale", "ScalingActive")]
    status = {"desiredReplicas": 3, "conditions": looked}
    server.indexes["horizontalpodautoscalers"] = {KEY: [{"metadata": metadata, "status": status}]}
    await operator.reconcile(KEY)
    assert server.reason("ScalingActive") == "ValidMetricFound"
    assert server.service["status"]["autoscaling"]["desiredReplicas"] == 3
