"""The order of a pass and its behaviour under failures that a real API server cannot be made to have at will.

The rest is tested against a real one, in tests/cluster/test_llmservice_reconcile.py.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest

from octavo_operator.reconcile.apply import ApiError
from octavo_operator.reconcile.kinds import CHILDREN, LLMSERVICE, POD, Kind
from octavo_operator.reconcile.observe import trimmed
from octavo_operator.reconcile.reconciler import Reconciler
from octavo_operator.render import RenderConfig
from tests.operator.bad_llmservices import VALID, merged

KEY = ("llm", "good")
METADATA = {"namespace": "llm", "uid": "u1", "generation": 1}


class Server:
    """Keeps what is applied and shows it to the operator as watches would; fails where told to."""

    def __init__(self, **spec: Any) -> None:
        self.writes: list[str] = []
        self.specs: dict[str, Any] = {}
        self.failures: dict[str, ApiError] = {}
        self.generation = 1
        self.watches_lag = False
        self.indexes: dict[str, dict[Any, list[Any]]] = {kind.plural: {} for kind in (LLMSERVICE, POD, *CHILDREN)}
        self.indexes[LLMSERVICE.plural][KEY] = [merged(VALID, {"metadata": METADATA, "spec": spec})]

    @property
    def service(self) -> dict[str, Any]:
        found: dict[str, Any] = self.indexes[LLMSERVICE.plural][KEY][0]
        return found

    def reason(self, kind: str) -> str:
        conditions = self.service["status"]["conditions"]
        return next(str(found["reason"]) for found in conditions if found["type"] == kind)

    async def get(self, kind: Kind, namespace: str, name: str) -> dict[str, Any] | None:
        return None

    async def apply(self, manifest: dict[str, Any], subresource: str = "") -> dict[str, Any]:
        what = manifest["kind"] + subresource
        if what in self.failures:
            raise self.failures[what]
        self.writes.append(what)
        if subresource:
            self.service["status"] = copy.deepcopy(manifest["status"])
            return self.service
        live = copy.deepcopy(manifest)
        self.specs[manifest["kind"]] = live["spec"]
        (kind,) = [kind for kind in CHILDREN if kind.name == manifest["kind"]]
        live["metadata"].update(uid="c1", generation=self.generation, resourceVersion=str(len(self.writes)))
        if self.watches_lag:
            return {**live, "status": self.indexes[kind.plural][KEY][0]["status"]}
        self.indexes[kind.plural][KEY] = [trimmed(kind, live)]
        return live

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        self.writes.append(f"delete {kind.name}")
        del self.indexes[kind.plural][KEY]


def reconciler(server: Server, image: str = "engine:1") -> Reconciler:
    return Reconciler(server, server.indexes, RenderConfig(image))


async def test_the_image_is_pinned_before_anything_is_made() -> None:
    server = Server()
    await reconciler(server).reconcile(KEY)
    assert server.writes[0] == "LLMService/status"
    assert server.writes[1:4] == ["Service", "PodDisruptionBudget", "Deployment"]
    assert server.service["status"]["engineImage"] == "engine:1"


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


@pytest.mark.parametrize("status", [0, 429, 503])
async def test_a_passing_failure_is_tried_again_and_not_told(status: int) -> None:
    server = Server()
    await reconciler(server).reconcile(KEY)
    before = copy.deepcopy(server.service["status"])
    server.failures["Deployment"] = ApiError(status, "x", "try later")
    with pytest.raises(ApiError, match="try later"):
        await reconciler(server).reconcile(KEY)
    assert server.service["status"] == before


@pytest.mark.parametrize("status", [400, 403, 422, 500])
async def test_a_refusal_is_told_and_tried_again(status: int) -> None:
    server = Server()
    server.failures["Deployment"] = ApiError(status, "Invalid", "spec.template is wrong")
    with pytest.raises(ApiError, match=r"spec\.template is wrong"):
        await reconciler(server).reconcile(KEY)
    assert (server.reason("Ready"), server.reason("Degraded")) == ("ApplyFailed", "ApplyFailed")
    assert "Service" in server.writes
    server.failures.clear()
    await reconciler(server).reconcile(KEY)
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
    assert server.specs["Deployment"]["replicas"] == 0
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
    server.indexes["deployments"][KEY][0]["status"] = {"observedGeneration": 1, **counts}
    await operator.reconcile(KEY)
    assert server.reason("Progressing") == "Deployed"
    server.service["spec"]["engine"] = {"maxModelLength": 77}
    server.generation, server.watches_lag = 2, True
    for _ in range(2):
        await operator.reconcile(KEY)
        assert (server.reason("Progressing"), server.reason("Ready")) == ("Deploying", "RollingOut")


async def test_a_status_that_comes_too_late_is_no_failure() -> None:
    server = Server()
    await reconciler(server).reconcile(KEY)
    server.failures["LLMService/status"] = ApiError(404, "NotFound", "gone")
    server.service["spec"]["suspend"] = True
    await reconciler(server).reconcile(KEY)


async def test_a_service_that_is_being_deleted_is_left_alone() -> None:
    server = Server()
    server.service["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    await reconciler(server).reconcile(KEY)
    assert server.writes == []


async def test_a_service_that_is_gone_is_forgotten() -> None:
    server = Server()
    first = reconciler(server)
    await first.reconcile(KEY)
    server.indexes[LLMSERVICE.plural].clear()
    server.writes.clear()
    await first.reconcile(KEY)
    assert server.writes == []
