"""Who sets the Deployment's number of replicas: the operator or an autoscaler."""

from __future__ import annotations

from typing import Any

import pytest

from octavo_operator.reconcile.api_requests.api_error import ApiError
from octavo_operator.reconcile.observation.sources import Sources
from octavo_operator.reconcile.reconciler import Reconciler
from octavo_operator.render import RenderConfig
from tests.operator.api_server import AUTOSCALED, KEY, Server, reconciler, settled
from tests.operator.bad_llmservices import merged


async def test_a_deployment_is_made_with_its_lower_bound_before_its_autoscaler() -> None:
    server = Server(**AUTOSCALED)
    await reconciler(server).reconcile(KEY)
    assert server.live["Deployment"]["spec"]["replicas"] == 3
    kinds = [what for what in server.writes if "/" not in what]
    assert kinds.index("Deployment") < kinds.index("HorizontalPodAutoscaler")
    assert server.reason("ScalingActive") == "AutoscalerPending"


async def test_without_a_metrics_api_for_keda_the_message_says_that_nothing_scales() -> None:
    server = Server(autoscaling={**AUTOSCALED["autoscaling"], "metricsSource": "KEDA"})
    await Reconciler(server, Sources(server.indexes), RenderConfig("engine:1", metrics_url="")).reconcile(KEY)
    assert not {"ScaledObject", "HorizontalPodAutoscaler"} & set(server.live)
    found = server.condition("ScalingActive")
    assert (found["status"], found["reason"]) == ("False", "AutoscalerFailed")
    assert "KEDA needs Octavo's metrics API, and the operator knows none" in found["message"]


async def test_what_an_autoscaler_writes_is_no_drift() -> None:
    server = Server(**AUTOSCALED)
    operator = reconciler(server)
    await operator.reconcile(KEY)
    server.change("Deployment", {"spec": {"replicas": 7}}, "kube-controller-manager")
    await operator.reconcile(KEY)
    assert server.live["Deployment"]["spec"]["replicas"] == 7
    assert server.service["status"]["desiredReplicas"] == 7


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
