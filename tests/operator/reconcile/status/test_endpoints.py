"""Ready means that clients can reach a pod: the Service's EndpointSlices decide, not the pods' status alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from octavo_operator.api.conditions import ConditionType, Reason
from octavo_operator.api.status import LLMServiceStatus
from octavo_operator.reconcile.kinds import BY_NAME, ENDPOINT_SLICE, POD
from octavo_operator.reconcile.observation.observe import Observation
from octavo_operator.reconcile.observation.trimmed import trimmed
from octavo_operator.reconcile.pods.pod_view import view
from octavo_operator.reconcile.problem import Problem
from octavo_operator.reconcile.status.summarize import Result, summarize
from octavo_operator.render.service import service as render_service
from tests.operator.reconcile.status.test_summarize import GPU, IMAGE, NOW, SERVING, condition, deployment, pod, service

SERVICE = BY_NAME["Service"]
LATER = "2026-01-01T00:01:00Z"


def endpoint_slice(*pods: str, ready: bool = True, name: str = "http", port: int = 8000) -> dict[str, Any]:
    endpoints = [{"conditions": {"ready": ready}, "targetRef": {"kind": "Pod", "name": each}} for each in pods]
    return {"metadata": {"name": "good-x1"}, "endpoints": endpoints, "ports": [{"name": name, "port": port}]}


def ready_pod(name: str, since: str = NOW) -> dict[str, Any]:
    found = pod(name, container=SERVING)
    found["status"]["conditions"][-1]["lastTransitionTime"] = since
    found["spec"] = {"containers": [{"name": "engine", "ports": [{"name": "http", "containerPort": 8000}]}]}
    return dict(trimmed(POD, found))


def status(
    *slices: dict[str, Any],
    since: str = NOW,
    child: dict[str, Any] | None = None,
    conflict: str = "",
    conflicts: Sequence[str] = (),
    unserved: Problem | None = None,
    known: dict[str, Any] | None = None,
    now: str = LATER,
) -> LLMServiceStatus:
    """The status of a service of two ready pods, a and b, with the Service `child`; the last status was `known`."""
    kept = tuple(trimmed(ENDPOINT_SLICE, each) for each in slices)
    pods = (ready_pod("a", since), ready_pod("b", since))
    children = {**deployment(ready=2, updated=2, total=2)}
    if child:
        children["Service", "good"] = trimmed(SERVICE, child)
    observed = Observation({}, children, pods, slices=kept)
    changed = tuple(Problem(Reason.FIELD_CONFLICT, each) for each in (*conflicts, conflict) if each)
    result = Result(unserved=unserved, conflicts=changed, route_conflict=conflict)
    llmservice = service(replicas=2).model_copy(update={"status": known})
    return summarize(llmservice, observed, IMAGE, result, now)


def made(**spec: Any) -> dict[str, Any]:
    """The Service, as the operator makes it but for fields of its spec."""
    found = render_service(service(replicas=2))
    return {**found, "metadata": {**found["metadata"], "uid": "s1"}, "spec": {**found["spec"], **spec}}


UNREACHED = [
    ("no slice", []),
    ("no endpoint", [endpoint_slice()]),
    ("not ready", [endpoint_slice("a", "b", ready=False)]),
    ("another port", [endpoint_slice("a", "b", port=1)]),
    ("a port of another name", [endpoint_slice("a", "b", name="other")]),
    ("pods of others", [endpoint_slice("stray")]),
]


@pytest.mark.parametrize("slices", [row[1] for row in UNREACHED], ids=[row[0] for row in UNREACHED])
def test_a_service_that_leads_to_no_ready_pod_is_not_ready(slices: list[dict[str, Any]]) -> None:
    reported = status(*slices)
    assert "their node was deleted" in condition(reported, ConditionType.READY).message
    for kind in (ConditionType.READY, ConditionType.AVAILABLE, ConditionType.DEGRADED, ConditionType.STALLED):
        found = condition(reported, kind)
        wrong = kind in (ConditionType.DEGRADED, ConditionType.STALLED)
        assert (found.status, found.reason) == (str(wrong), Reason.NO_ENDPOINTS)
        assert "Service good does not route to any of them" in found.message


@pytest.mark.parametrize(("ending", "reached"), [(True, True), (False, False)])
def test_it_stays_ready_while_endpoint_slices_lead_to_the_pod_that_is_replaced(ending: bool, reached: bool) -> None:
    """On a busy cluster they may be behind; a pod that ends still answers meanwhile."""
    before, new = ready_pod("before"), ready_pod("new")
    if ending:
        before["metadata"]["deletionTimestamp"] = LATER
    pods = (before, new) if ending else (new,)
    slices = (trimmed(ENDPOINT_SLICE, endpoint_slice("before")),)
    observed = Observation({}, deployment(ready=1), pods, slices=slices)
    known = {"conditions": [{"type": "Ready", "status": "True", "reason": "Serving", "lastTransitionTime": NOW}]}
    reported = summarize(service().model_copy(update={"status": known}), observed, IMAGE, Result(), LATER)
    assert (condition(reported, ConditionType.READY).status == "True") is reached


@pytest.mark.parametrize("since", ["2026-01-01T01:00:00Z", "2025-12-31T23:00:00Z"], ids=["ahead", "behind"])
@pytest.mark.parametrize(("now", "reason"), [(5, Reason.DEPLOYING), (12, Reason.NO_ENDPOINTS)])
def test_a_node_whose_clock_is_wrong_changes_nothing_of_when_a_missing_route_is_reported(
    since: str, now: int, reason: Reason
) -> None:
    """The API server's clock says when the pod became ready."""
    found = ready_pod("a", since) | {"statusChanged": NOW}
    observed = Observation({}, deployment(ready=1), (found,), slices=())
    reported = summarize(service(), observed, IMAGE, Result(), f"2026-01-01T00:00:{now:02}Z")
    assert condition(reported, ConditionType.READY).reason == reason


FOREIGN = [
    (made(selector={"nobody": "has-this"}), "", "its selector is nobody=has-this, which the operator has not set"),
    (made(ports=[{"name": "http", "port": 80, "targetPort": 1}]), "", "its port http leads to 1, which"),
    (
        {**made(), "metadata": {"uid": "s1"}},
        "",
        "its label octavo.dev/llmservice, by which its EndpointSlices are known, ",
    ),
    (made(), "argocd keeps changing it", "does not route to any of them: argocd keeps changing it"),
    (made(), "", "something other than the operator makes its endpoints"),
]


@pytest.mark.parametrize(("child", "conflict", "words"), FOREIGN)
def test_what_others_have_changed_in_the_service_is_named(child: dict[str, Any], conflict: str, words: str) -> None:
    reported = status(child=child, conflict=conflict)
    for kind in (ConditionType.STALLED, ConditionType.DEGRADED):
        found = condition(reported, kind)
        assert found.reason == Reason.NO_ENDPOINTS
        assert found.message.count(words) == 1


def test_a_conflict_over_the_service_is_said_once_beside_one_over_another_child() -> None:
    found = condition(
        status(child=made(), conflict="argocd changes it", conflicts=["helm too"]), ConditionType.DEGRADED
    )
    assert found.reason == Reason.NO_ENDPOINTS
    assert (found.message.count("argocd changes it"), found.message.count("helm too")) == (1, 1)


def test_a_service_that_is_refused_is_the_reason_and_not_its_endpoints() -> None:
    reported = status(unserved=Problem(Reason.APPLY_FAILED, "a quota says no"))
    for kind in (ConditionType.READY, ConditionType.AVAILABLE, ConditionType.DEGRADED, ConditionType.STALLED):
        assert condition(reported, kind).message == "a quota says no"


def test_a_service_that_is_made_anew_leads_to_no_pod_for_a_moment() -> None:
    """Another client has deleted it, or its EndpointSlices, while it served."""
    served = status(endpoint_slice("a"), now="2026-01-01T00:00:55Z").as_object()
    lost = status(known=served)
    assert condition(lost, ConditionType.READY).reason == Reason.DEPLOYING
    assert condition(lost, ConditionType.STALLED).status == "False"
    later = status(known=lost.as_object(), now="2026-01-01T00:01:09Z")
    assert condition(later, ConditionType.STALLED).status == "False"
    still = status(known=later.as_object(), now="2026-01-01T00:01:11Z")
    assert condition(still, ConditionType.STALLED).reason == Reason.NO_ENDPOINTS
    assert condition(status(known=still.as_object(), now=LATER), ConditionType.STALLED).reason == Reason.NO_ENDPOINTS


def test_a_pod_that_has_just_become_ready_is_about_to_be_reached() -> None:
    reported = status(since="2026-01-01T00:00:55Z")
    found = condition(reported, ConditionType.READY)
    assert (found.status, found.reason) == ("False", Reason.DEPLOYING)
    assert (
        condition(reported, ConditionType.STALLED).status
        == condition(reported, ConditionType.DEGRADED).status
        == "False"
    )


def test_the_port_may_be_that_of_a_sidecar_before_the_engine() -> None:
    sidecar = {"name": "proxy", "restartPolicy": "Always", "ports": [{"name": "http", "containerPort": 9000}]}
    found = pod("a", container=SERVING)
    found["spec"] = {
        "initContainers": [sidecar],
        "containers": [{"name": "engine", "ports": [{"containerPort": 8000}]}],
    }
    assert view(trimmed(POD, found), GPU).port == 9000


def test_an_endpoint_that_names_no_pod_is_nobodys() -> None:
    """As in an EndpointSlice that another manager has made."""
    stray = endpoint_slice("a", "b")
    stray["endpoints"] += [{"conditions": {"ready": True}, "targetRef": {"kind": "Node"}}]
    assert condition(status(stray), ConditionType.READY).reason is Reason.SERVING


def test_an_endpoint_that_does_not_say_whether_it_is_ready_is() -> None:
    """As the API has it (discovery.k8s.io/v1), and as EndpointSlices of other managers may be."""
    silent = endpoint_slice("a", "b")
    for each in silent["endpoints"]:
        del each["conditions"]
    assert condition(status(silent), ConditionType.READY).reason is Reason.SERVING


def test_one_slice_of_several_is_enough() -> None:
    found = condition(status(endpoint_slice("stray"), endpoint_slice("b")), ConditionType.READY)
    assert (found.status, found.reason) == ("True", Reason.SERVING)
