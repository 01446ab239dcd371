"""What acts for an LLMService without being part of it is reported, and left alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from octavo_operator.api.conditions import ConditionType, Reason
from octavo_operator.api.names import pod_labels
from octavo_operator.metrics_api.pods import engine_pod as answering_pod
from octavo_operator.reconcile.kinds import BY_NAME, ENDPOINT_SLICE, LLMSERVICE, POD, Kind
from octavo_operator.reconcile.observation.observe import Key, Observation, observe
from octavo_operator.reconcile.queue import WorkQueue
from octavo_operator.reconcile.status.summarize import Result, summarize
from octavo_operator.reconcile.watching.foreign_budgets import foreign_budgets
from octavo_operator.reconcile.watching.foreign_objects import (
    UNSEEN_PODS,
    ForeignObjectWatch,
    foreign_pod,
    foreign_slice,
)
from octavo_operator.reconcile.watching.released_pods import MANY, is_released, released_pods
from octavo_operator.reconcile.watching.watched import Watched
from octavo_operator.reconcile.watching.watches import Indexed
from tests.operator.bad_llmservices import merged
from tests.operator.reconcile.status.test_summarize import IMAGE, NOW, SERVING, condition, deployment, pod, service

KEY = ("llm", "good")
OWN = "10.0.0.1"
BUDGET = BY_NAME["PodDisruptionBudget"]
REPLICA_SET = {"kind": "ReplicaSet", "name": "good-r1", "controller": True}


def slice_to(*addresses: str, ready: bool | None = True, port: str = "http", **labels: str) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "good-theirs",
            "namespace": "llm",
            "labels": {"kubernetes.io/service-name": "good", **labels},
            "managedFields": [{"manager": "kubectl-client-side-apply"}],
        },
        "endpoints": [{"addresses": list(addresses), "conditions": {} if ready is None else {"ready": ready}}],
        "ports": [{"name": port, "port": 8000}],
    }


MESH = {"endpointslice.kubernetes.io/managed-by": "mesh.example.com"}
SLICES = [
    ("another address", slice_to("10.9.9.9"), "made by kubectl-client-side-apply"),
    ("a manager with a name", slice_to("10.9.9.9", **MESH), "made by mesh.example.com"),
    ("unknown readiness counts as ready", slice_to("10.9.9.9", ready=None), "10.9.9.9"),
    ("beside our own", slice_to(OWN, "10.9.9.9"), "to 10.9.9.9, which"),
    ("our own pods", slice_to(OWN), ""),
    ("not ready", slice_to("10.9.9.9", ready=False), ""),
    ("another port", slice_to("10.9.9.9", port="grpc"), ""),
    ("none", slice_to(), ""),
]


@pytest.mark.parametrize(("body", "words"), [row[1:] for row in SLICES], ids=[row[0] for row in SLICES])
def test_an_endpoint_slice_of_another_manager_that_leads_elsewhere_is_named(body: dict[str, Any], words: str) -> None:
    problem = foreign_slice(body, {OWN})
    assert (problem is not None) is bool(words)
    assert problem is None or (words in problem.message and "EndpointSlice good-theirs" in problem.message)


def engine_pod(**fields: Any) -> dict[str, Any]:
    metadata = {"name": "good-r1-x", "namespace": "llm", "labels": pod_labels("good")}
    return merged({"metadata": metadata}, {"metadata": fields})


def without(label: str) -> dict[str, str]:
    return {name: value for name, value in pod_labels("good").items() if name != label}


RELEASED = [
    (without("octavo.dev/llmservice"), "lacks the label octavo.dev/llmservice=good, gets no requests"),
    (
        {**pod_labels("good"), "octavo.dev/track": "debug"},
        "kubectl label --overwrite pod good-r1-x octavo.dev/track=",
    ),
    (pod_labels("good"), "still gets requests from the Service"),
]


@pytest.mark.parametrize(("labels", "words"), RELEASED)
def test_a_pod_that_left_its_deployment_is_named_with_what_to_do(labels: dict[str, str], words: str) -> None:
    metadata: dict[str, Any] = {"name": "good-r1-x", "labels": labels}
    (problem,) = released_pods([metadata], "good")
    assert words in problem.message and "kubectl delete pod good-r1-x" in problem.message
    assert is_released(metadata)
    assert not is_released({**metadata, "ownerReferences": [REPLICA_SET]})
    assert not is_released({**metadata, "deletionTimestamp": NOW})


def test_many_pods_that_left_their_deployment_are_one_problem_and_what_changes_labels_is_to_be_found() -> None:
    pods = [{"name": f"good-r1-{number}", "labels": without("octavo.dev/track")} for number in range(MANY)]
    (problem,) = released_pods(pods, "good")
    assert f"{MANY} pods run outside" in problem.message and "(octavo.dev/track=stable)" in problem.message
    assert "mutatingadmissionpolicies" in problem.message and "spec.suspend" in problem.message
    assert "managed-by=octavo-operator,app.kubernetes.io/instance=good" in problem.message
    assert len(released_pods(pods[1:], "good")) == MANY - 1


OF_ANOTHER = engine_pod(name="theirs-x", ownerReferences=[{**REPLICA_SET, "name": "good-copy-r1"}])


def test_pods_of_another_workload_with_all_labels_are_named_once_and_are_none_of_the_services() -> None:
    problem = foreign_pod(OF_ANOTHER["metadata"], "good")
    assert (
        problem and "the pods of ReplicaSet good-copy-r1 have all labels that Service good selects" in problem.message
    )
    own = engine_pod(ownerReferences=[REPLICA_SET])
    for left_alone in (own, engine_pod(), merged(OF_ANOTHER, {"metadata": {"labels": {"octavo.dev/track": "other"}}})):
        assert foreign_pod(left_alone["metadata"], "good") is None
    running = {"podIP": OWN, "containerStatuses": [{"name": "engine", "state": {"running": {}}}]}
    assert answering_pod({"metadata": {**OF_ANOTHER["metadata"], "uid": "u"}, "status": running}) is None
    indexes: dict[str, Any] = {LLMSERVICE.plural: {}, POD.plural: {KEY: [own, OF_ANOTHER, OF_ANOTHER]}}
    assert observe(KEY, indexes).pods == (own,)


def budget(**selector: Any) -> dict[str, Any]:
    metadata = {"name": "theirs", "namespace": "llm"}
    return {"metadata": metadata, "spec": {"selector": selector or {"matchLabels": {"octavo.dev/llmservice": "good"}}}}


def expression(operator: str, key: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, **({"values": list(values)} if values else {})}]}


INSTANCE = "app.kubernetes.io/instance"
BUDGETS = [
    ({"matchLabels": {INSTANCE: "good"}}, True),
    ({"matchLabels": {INSTANCE: "good", "app": "x"}}, False),
    (expression("In", INSTANCE, "other", "good"), True),
    (expression("NotIn", "app", "x"), True),
    (expression("NotIn", INSTANCE, "good"), False),
    (expression("Exists", INSTANCE), True),
    (expression("DoesNotExist", INSTANCE), False),
    (expression("DoesNotExist", "app"), True),
]


@pytest.mark.parametrize(("selector", "covers"), BUDGETS)
def test_a_budget_of_others_that_covers_a_pod_beside_its_own_is_named(selector: dict[str, Any], covers: bool) -> None:
    pods = {KEY: [engine_pod(), engine_pod()], ("llm", "other"): [], ("elsewhere", "good"): [engine_pod()]}
    problems = list(foreign_budgets([budget(**selector)], pods))
    assert [key for key, _ in problems] == [KEY] * covers
    assert all("PodDisruptionBudget theirs covers pod good-r1-x" in problem.message for _, problem in problems)
    everything, nothing = ({**budget(), "spec": spec} for spec in ({"selector": {}}, {}))
    assert list(foreign_budgets([everything], pods)) and not list(foreign_budgets([nothing], pods))


def test_budgets_of_others_are_compared_only_with_pods_that_have_one_of_their_labels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[Any] = []
    selects = "octavo_operator.reconcile.watching.foreign_budgets.selects"
    monkeypatch.setattr(selects, lambda *each: compared.append(each))
    pods = {("llm", f"model-{number}"): [engine_pod()] for number in range(30)}
    budgets = [budget(matchLabels={INSTANCE: "good", "app": f"web-{number}"}) for number in range(30)]
    assert not list(foreign_budgets(budgets, pods)) and not compared


class Lists:
    """An API server with these objects; its pods lack the label of the LLMService."""

    def __init__(self, **objects: list[dict[str, Any]]) -> None:
        self.objects = objects
        self.selectors: dict[str, str] = {}

    async def list_selected(
        self, kind: Kind, namespace: str, selector: str, metadata_only: bool = False
    ) -> list[dict[str, Any]]:
        self.selectors[kind.plural] = selector
        return [] if kind is POD and selector != UNSEEN_PODS[0] else self.objects.get(kind.plural, [])


async def test_they_are_found_for_the_service_that_they_name_and_gone_when_they_are() -> None:
    queue = WorkQueue[Key]()
    lists = Lists(
        endpointslices=[slice_to("10.9.9.9")],
        pods=[{"metadata": {"name": "good-r1-y", "namespace": "llm", "labels": without("octavo.dev/llmservice")}}],
        poddisruptionbudgets=[budget(), {**budget(), "metadata": {"name": "theirs", "namespace": "other"}}],
    )
    indexes = {
        LLMSERVICE.plural: {KEY: [{}]},
        POD.plural: {KEY: [{**engine_pod(ownerReferences=[REPLICA_SET]), "status": {"podIPs": [{"ip": OWN}]}}]},
        BUDGET.plural: {KEY: [{}]},
    }
    indexed = Indexed()
    watched = Watched({kind: [""] for kind in (ENDPOINT_SLICE, POD, BUDGET)}, indexes, queue)
    watch = ForeignObjectWatch(lists, watched, indexed, ["mesh.example.com"])
    indexed.add(["other"])
    await watch.find()
    assert watch.found == {}, "the pods of this namespace may not be known yet"
    indexed.add(["llm"])
    await watch.find()
    reasons = [Reason.FOREIGN_ENDPOINTS, Reason.RELEASED_POD, Reason.SECOND_BUDGET]
    assert [each.reason for each in watch.found[KEY]] == reasons
    assert len(queue) == 1
    assert lists.selectors["endpointslices"].endswith("notin (endpointslice-controller.k8s.io,mesh.example.com)")
    indexes[BUDGET.plural] = {}
    await watch.find()
    assert [each.reason for each in watch.found[KEY]] == reasons[:2], "spec.disruption is null: theirs is the only one"
    lists.objects = {"endpointslices": [slice_to(OWN)]}
    await watch.find()
    assert watch.found == {}
    lists.objects = {"pods": [merged(engine_pod(), {"metadata": {"labels": {"app.kubernetes.io/instance": "gone"}}})]}
    await watch.find()
    assert watch.found == {}, "there is no LLMService of that name"
    lists.objects, indexes[POD.plural] = {}, {KEY: [engine_pod()]}
    await watch.find()
    assert [each.reason for each in watch.found[KEY]] == [Reason.RELEASED_POD], "of the pods that the watches know"
    indexes[POD.plural] = {KEY: [OF_ANOTHER, OF_ANOTHER]}
    await watch.find()
    assert [each.reason for each in watch.found[KEY]] == [Reason.FOREIGN_ENDPOINTS], "once for all pods of a ReplicaSet"


def test_the_conditions_name_them() -> None:
    problems = (foreign_slice(slice_to("10.9.9.9"), ()), *released_pods([{"name": "good-r1-x", "labels": {}}], "good"))
    observed = Observation({}, deployment(ready=1), (pod(container=SERVING),))
    observed = replace(observed, foreign_problems=tuple(each for each in problems if each))
    status = summarize(service(), observed, IMAGE, Result(), NOW)
    ready, degraded = (condition(status, kind) for kind in (ConditionType.READY, ConditionType.DEGRADED))
    assert (ready.status, ready.reason, degraded.reason) == ("True", *(Reason.FOREIGN_ENDPOINTS,) * 2)
    assert "EndpointSlice good-theirs" in ready.message
    assert "pod good-r1-x" in degraded.message
