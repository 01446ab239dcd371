"""LLMServices and children that are being deleted: what is waited for, and what is reported."""

from __future__ import annotations

from typing import Any

import pytest

from octavo_operator.reconcile.api_requests.api_error import ApiError
from octavo_operator.reconcile.kinds import LLMSERVICE
from octavo_operator.reconcile.observation.sources import Sources
from octavo_operator.reconcile.observation.trimmed import trimmed
from octavo_operator.reconcile.reconciler import Reconciler
from octavo_operator.render import RenderConfig
from tests.operator.api_server import CHILD, KEY, Server, reconciler, settled, with_pods


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
    operator = Reconciler(
        server, Sources(server.indexes), RenderConfig("engine:1"), clock=lambda: "2026-01-01T00:00:05Z"
    )
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
    operator = Reconciler(server, Sources(server.indexes), RenderConfig("engine:1"), clock=lambda: now)
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
