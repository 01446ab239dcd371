"""Fields that other managers keep changing: conflicts, how often these are written, and when they end."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from octavo_operator.reconcile.api_requests.api_error import ApiError
from octavo_operator.reconcile.apply.field_conflicts import others
from tests.operator.api_server import KEY, Clock, Server, autoscaler, reconciler, settled
from tests.operator.bad_llmservices import merged


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


async def test_drift_is_reverted_at_once_and_a_conflict_once_a_minute(clock: Clock) -> None:
    server = Server()
    operator = await settled(server)
    reverted = 0
    for seconds in range(180):
        clock.now += 1
        server.change("Deployment", {"spec": {"minReadySeconds": 99}}, "argocd")
        again = await operator.reconcile(KEY)
        reverted += server.live["Deployment"]["spec"]["minReadySeconds"] == 5
        assert (again is None) == (seconds == 0)
    assert reverted == 3
    found = server.condition("Degraded")
    assert (found["status"], found["reason"]) == ("True", "FieldConflict")
    assert "Deployment good" in found["message"]
    assert "spec.minReadySeconds by argocd" in found["message"]
    assert {server.reason("Ready"), server.reason("Stalled")}.isdisjoint({"FieldConflict"}), "no pod differs"


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
    server.autoscalers = [autoscaler("theirs"), autoscaler("elsewhere", "other")]
    operator = await settled(server)
    for _ in range(2):
        clock.now += 1
        server.change("Deployment", {"spec": {"replicas": 2}}, "kube-controller-manager")
        await operator.reconcile(KEY)
    message = server.condition("Degraded")["message"]
    assert "HorizontalPodAutoscaler that is not the LLMService's scales it" in message
    assert "spec.replicas by HorizontalPodAutoscaler theirs." in message
    assert "delete that, or the ScaledObject from which KEDA makes it" in message  # KEDA would make it again


async def test_replicas_that_another_autoscaler_sets_are_changed_back_less_and_less_often(clock: Clock) -> None:
    """Each of its numbers starts pods, which load for minutes, and each of ours ends them."""
    server = Server()
    server.autoscalers = [autoscaler("theirs")]
    operator = await settled(server)
    for _ in range(4 * 3600 // 60):
        clock.now += 60
        server.change("Deployment", {"spec": {"replicas": 2}}, "kube-controller-manager")
        await operator.reconcile(KEY)
    assert 8 <= server.writes.count("Deployment") <= 10
    assert "It is set back less and less often, since each change starts" in server.condition("Degraded")["message"]
    server.change("Deployment", {"spec": {"replicas": 0}}, "kubectl")  # by a person: nothing serves
    clock.now += 61
    await operator.reconcile(KEY)
    assert server.live["Deployment"]["spec"]["replicas"] == 1


@pytest.mark.parametrize("readable", [True, False])
async def test_the_replicas_of_an_autoscaler_that_was_deleted_are_changed_back_soon(
    readable: bool, clock: Clock
) -> None:
    """Nothing changes them any more, and no watch reports its end."""
    server = Server()
    server.autoscalers = [autoscaler("theirs")]
    if not readable:
        server.unread["HorizontalPodAutoscaler"] = ApiError(403, "Forbidden", "no right")
    operator = await settled(server)
    for _ in range(3600 // 15):
        clock.now += 15
        server.change("Deployment", {"spec": {"replicas": 2}}, "kube-controller-manager")
        again = await operator.reconcile(KEY)
    assert again is not None and again <= 60
    server.autoscalers = []
    clock.now += again
    again = await operator.reconcile(KEY)
    if not readable:
        assert server.live["Deployment"]["spec"]["replicas"] == 2
        return
    assert server.live["Deployment"]["spec"]["replicas"] == 1
    assert server.reason("Degraded") == "AsExpected"
    assert again is None


async def test_a_conflict_ends_with_an_autoscaler_that_is_deleted_before_it_changes_the_number_again(
    clock: Clock,
) -> None:
    server = Server()
    server.autoscalers = [autoscaler("theirs")]
    operator = await settled(server)
    for _ in range(2):
        server.change("Deployment", {"spec": {"replicas": 2}}, "kube-controller-manager")
        again = await operator.reconcile(KEY)
        assert again is None or again <= 60
    clock.now += 61
    again = await operator.reconcile(KEY)
    assert (server.live["Deployment"]["spec"]["replicas"], server.reason("Degraded")) == (1, "FieldConflict")
    server.unread["HorizontalPodAutoscaler"] = ApiError(503, "x", "try later")
    await operator.reconcile(KEY)
    assert server.reason("Degraded") == "FieldConflict", "it is not known to be deleted"
    server.unread.clear()
    server.autoscalers = []
    assert again is not None and again <= 60
    clock.now += again
    assert await operator.reconcile(KEY) is None
    assert server.reason("Degraded") == "AsExpected"


async def test_a_long_conflict_is_reported_once_and_written_once_a_minute(clock: Clock) -> None:
    server = Server()
    operator = await settled(server)
    for _ in range(600 // 5):
        clock.now += 5
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
    for _ in range(4 * 3600 // 60):
        clock.now += 60
        server.change("Deployment", {"spec": theirs}, "kyverno")
        await operator.reconcile(KEY)
    assert 8 <= server.writes.count("Deployment") <= 10
    assert "kyverno. It is set back less and less often, since each change" in server.condition("Degraded")["message"]
    assert server.writes.count("LLMService/status") == 1
    assert server.live["Deployment"]["spec"]["template"]["spec"] != ours
    assert server.reason("Ready") != "FieldConflict"
    for kind in ("Progressing", "Reconciling", "Stalled"):
        assert server.reason(kind) == "FieldConflict", "its pods are not those that are wanted"


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
    for seconds in range(0, 900, 5):
        clock.now += 5
        if seconds % 90 == 0:
            server.change("Deployment", {"spec": {"minReadySeconds": 99}}, "flux")
        await operator.reconcile(KEY)
    assert (server.writes.count("Deployment"), server.writes.count("LLMService/status")) == (10, 1)
    assert server.reason("Degraded") == "FieldConflict"


async def test_a_conflict_over_one_field_keeps_no_other_from_being_reverted_at_once(clock: Clock) -> None:
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


async def test_a_revert_that_fails_is_none(clock: Clock) -> None:
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
    assert server.reason("Degraded") == "FieldConflict"
    assert "keeps being deleted by another client. It is created again" in server.condition("Degraded")["message"]


async def test_a_deployment_that_is_deleted_again_and_again_is_stalled(clock: Clock) -> None:
    server = Server()
    operator = await settled(server)
    for _ in range(2):
        server.remove("Deployment")
        await operator.reconcile(KEY)
    for kind in ("Degraded", "Progressing", "Reconciling", "Stalled"):
        assert server.reason(kind) == "FieldConflict"
        assert "Deployment good keeps being deleted by another client" in server.condition(kind)["message"]


async def test_ports_that_others_keep_adding_are_a_conflict(clock: Clock) -> None:
    server = Server()
    operator = await settled(server)
    for _ in range(3):
        clock.now += 1
        server.change("Service", {"spec": {"ports": [{"name": "http", "port": 81, "targetPort": 1}]}}, "argocd")
        await operator.reconcile(KEY)
    assert server.writes.count("put back Service") == 1
    assert "spec.ports[0].port by argocd" in server.condition("Degraded")["message"]
