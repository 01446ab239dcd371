"""Children of the LLMService's name that other objects own: they are neither written nor deleted, and are reported."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest

from octavo_operator.reconcile.api_requests.api_error import ApiError
from octavo_operator.reconcile.kinds import LLMSERVICE
from tests.operator.api_server import AUTOSCALED, CHILD, KEY, Server, owners, reconciler, settled
from tests.operator.bad_llmservices import GONE, merged

OURS = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "good", "uid": "u8", "controller": True}
CONTROLLER = {"apiVersion": "example.com/v1", "kind": "Widget", "name": "w", "uid": "u7", "controller": True}
OTHER = {"apiVersion": "octavo.dev/v1alpha1", "kind": "LLMService", "name": "other", "uid": "u9", "controller": True}


@pytest.mark.parametrize(
    ("owners", "words"),
    [
        ([], "does not belong to this LLMService; rename the LLMService, or delete that object"),
        ([CONTROLLER], "but to Widget w; rename the LLMService, or delete its owner"),
        ([OTHER], "but to LLMService other; create one of the two LLMServices under another name"),
        (
            [OURS],
            "but to Deployment good; kubectl delete service good: this LLMService gets its own, if it still needs",
        ),
    ],
    ids=["no owner", "another controller", "another LLMService", "its own Deployment"],
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


@pytest.mark.parametrize(("restarts", "replicas"), [(False, 1), (True, 1), (True, 2)])
async def test_a_child_whose_owner_and_labels_another_client_removes_is_not_taken_for_anothers(
    restarts: bool, replicas: int
) -> None:
    server = Server()
    operator = await settled(server)
    wanted = copy.deepcopy(server.live)
    strip(server)
    server.service["spec"]["replicas"] = replicas
    await (reconciler(server) if restarts else operator).reconcile(KEY)
    for name in ("ownerReferences", "labels", "uid"):
        assert server.live["Deployment"]["metadata"][name] == wanted["Deployment"]["metadata"][name]
    assert server.reason("Degraded") == "AsExpected"


async def test_a_child_that_is_replaced_without_all_metadata_is_known_by_its_uid() -> None:
    """As by kubectl replace from a file that says nothing but its spec."""
    server = Server()
    operator = await settled(server)
    strip(server)
    metadata = server.live["Deployment"]["metadata"]
    del metadata["annotations"], metadata["managedFields"]
    await operator.reconcile(KEY)
    assert metadata["uid"] == server.live["Deployment"]["metadata"]["uid"]
    assert server.live["Deployment"]["metadata"]["ownerReferences"]
    assert server.reason("Degraded") == "AsExpected"


async def test_a_child_without_owner_and_labels_is_deleted_once_it_is_not_wanted() -> None:
    """But not a claim, whose data somebody may want to keep."""
    server = Server(cache={"type": "PersistentVolumeClaim", "size": "1Gi"})
    operator = await settled(server)
    for kind in ("PodDisruptionBudget", "PersistentVolumeClaim"):
        strip(server, kind)
    server.service["spec"].update(disruption=None, cache={"type": "Ephemeral"})
    await operator.reconcile(KEY)
    await operator.reconcile(KEY)
    assert [each for each in server.writes if each.startswith("delete")] == ["delete PodDisruptionBudget"]


@pytest.mark.parametrize("lost", ["labels", "uid"])
async def test_a_child_that_no_watch_shows_is_deleted_once_it_is_not_wanted(lost: str) -> None:
    """One that has only lost its labels, and one that a backup has restored without them: its uid is another."""
    server = Server()
    operator = await settled(server)
    owners = server.live["PodDisruptionBudget"]["metadata"]["ownerReferences"]
    strip(server, "PodDisruptionBudget")
    server.live["PodDisruptionBudget"]["metadata"] |= {"ownerReferences": owners} if lost == "labels" else {"uid": "c2"}
    server.service["spec"]["disruption"] = None
    await operator.reconcile(KEY)
    assert "PodDisruptionBudget" not in server.live


async def test_an_object_of_another_that_has_the_name_of_a_child_that_is_gone_is_not_deleted() -> None:
    server = Server()
    operator = await settled(server)
    strip(server, "PodDisruptionBudget")
    server.live["PodDisruptionBudget"] = {"kind": "PodDisruptionBudget", **THEIRS}
    server.service["spec"]["disruption"] = None
    await operator.reconcile(KEY)
    assert server.live["PodDisruptionBudget"] == {"kind": "PodDisruptionBudget", **THEIRS}


@pytest.mark.parametrize(
    ("service", "manager", "ours"),
    [("good", "octavo-operator", True), ("good", "helm", False), ("other", "octavo-operator", False)],
)
async def test_an_object_without_owner_is_the_llmservices_by_both_labels(
    service: str, manager: str, ours: bool
) -> None:
    server = Server()
    labels = {"octavo.dev/llmservice": service, "app.kubernetes.io/managed-by": manager}
    server.live["Service"] = merged({"kind": "Service", **THEIRS}, {"metadata": {"labels": labels}})
    with contextlib.nullcontext() if ours else pytest.raises(ApiError, match="does not belong to this LLMService"):
        await reconciler(server).reconcile(KEY)
    assert ("ownerReferences" in server.live["Service"]["metadata"]) is ours


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_child_of_another_llmservice_is_not_taken_though_owner_and_labels_are_removed(restarts: bool) -> None:
    """Nor one that an earlier LLMService of this name left on purpose: its manifest had another owner's uid."""
    server = Server()
    operator = await settled(server)
    strip(server)
    server.live["Deployment"]["metadata"]["annotations"]["octavo.dev/applied"] = "another's digest"
    server.live["Deployment"]["metadata"]["uid"] = "theirs"
    kept = copy.deepcopy(server.live["Deployment"])
    with pytest.raises(ApiError, match="Deployment good exists and does not belong to this LLMService"):
        await (reconciler(server) if restarts else operator).reconcile(KEY)
    assert server.live["Deployment"] == kept
    assert server.reason("Degraded") == "NameTaken"


def strip(server: Server, kind: str = "Deployment") -> None:
    """Remove owner and labels of a child, as another client may."""
    metadata = server.live[kind]["metadata"]
    for name in ("ownerReferences", "labels"):
        del metadata[name]
    applied = {"manager": "octavo-operator", "operation": "Apply", "fieldsV1": {"f:spec": {"f:replicas": {}}}}
    metadata["managedFields"] = [applied]
    del server.indexes[CHILD[kind].plural][KEY]  # watches select by a label


THEIRS = {"metadata": {"uid": "theirs", "generation": 1, "resourceVersion": "1"}, "spec": {}}


async def test_an_autoscaler_never_scales_a_deployment_of_another_owner() -> None:
    server = Server(autoscaling=AUTOSCALED["autoscaling"])
    server.live["Deployment"] = {"kind": "Deployment", **THEIRS}
    operator = reconciler(server)
    with pytest.raises(ApiError, match="Deployment good exists and does not belong to this LLMService"):
        await operator.reconcile(KEY)
    assert "Service" in server.writes
    assert "HorizontalPodAutoscaler" not in server.writes
    del server.live["Deployment"]
    await operator.reconcile(KEY)
    assert "HorizontalPodAutoscaler" in server.writes
    server.live["Deployment"] = {"kind": "Deployment", **THEIRS}  # ours was deleted, and theirs was quicker
    del server.indexes["deployments"][KEY]
    with pytest.raises(ApiError, match="does not belong to this LLMService"):
        await operator.reconcile(KEY)
    assert server.writes[-2:] == ["delete HorizontalPodAutoscaler", "LLMService/status"]


async def test_no_pod_writes_to_a_claim_of_another_owner() -> None:
    server = Server(cache={"type": "PersistentVolumeClaim", "size": "1Gi"})
    server.live["PersistentVolumeClaim"] = {"kind": "PersistentVolumeClaim", **THEIRS}
    operator = reconciler(server)
    with pytest.raises(
        ApiError, match="PersistentVolumeClaim good-cache exists and does not belong to this LLMService"
    ):
        await operator.reconcile(KEY)
    assert "Deployment" not in server.writes
    assert (server.reason("Ready"), server.reason("Stalled")) == ("NameTaken", "NameTaken")
    server.service["spec"]["suspend"] = True
    with pytest.raises(ApiError, match="does not belong to this LLMService"):
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
    with pytest.raises(ApiError, match="does not belong to this LLMService"):
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


def made_again(server: Server) -> None:
    """The LLMService was deleted and made again at once: its children are not deleted yet."""
    server.service["metadata"]["uid"] = "u2"
    server.writes.clear()


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
    assert children == [
        *(write for each in made for write in (f"delete {each}", each)),
        "delete HorizontalPodAutoscaler",
    ]
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
        with pytest.raises(ApiError, match="does not belong to this LLMService"):
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
