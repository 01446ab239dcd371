"""The sentence that says why an LLMService scales or not, from the status of a real HorizontalPodAutoscaler."""

from __future__ import annotations

from typing import Any

import pytest

from octavo_operator.api.conditions import Reason
from octavo_operator.api.resource import LLMService, parse
from octavo_operator.reconcile.status.autoscaling import Scaling, scaling
from octavo_operator.render.schedules import Bounds
from tests.operator.bad_llmservices import VALID, merged

UNAVAILABLE = (
    "the HPA was unable to compute the replica count: unable to get external metric llm/octavo_requests_waiting/"
    "&LabelSelector{MatchLabels:map[string]string{llmservice: good,},MatchExpressions:[]LabelSelectorRequirement{},}: "
    "unable to fetch metrics from external metrics API: the server is currently unable to handle the request "
    "(get octavo_requests_waiting.external.metrics.k8s.io)"
)


def service(**autoscaling: Any) -> LLMService:
    given = {"minReplicas": 1, "maxReplicas": 4, **autoscaling}
    return parse(merged(VALID, {"spec": {"autoscaling": given, "engine": {"maxConcurrentRequests": 10}}}))


def hpa(*conditions: tuple[str, str, str], desired: int = 2, message: str = "", **averages: str) -> dict[str, Any]:
    known = {"AbleToScale": ("True", "ReadyForNewScale"), "ScalingActive": ("True", "ValidMetricFound")}
    known |= {kind: (status, reason) for kind, status, reason in conditions}
    return {
        "status": {
            "desiredReplicas": desired,
            "lastScaleTime": "2026-01-01T00:00:00Z",
            "conditions": [
                {"type": kind, "status": status, "reason": reason, "message": message}
                for kind, (status, reason) in known.items()
            ],
            "currentMetrics": [
                {"type": "External", "external": {"metric": {"name": name}, "current": {"averageValue": value}}}
                for name, value in averages.items()
            ],
        }
    }


def judged(found: dict[str, Any] | None, replicas: int = 2, ready: int = 2, **fields: Any) -> Scaling:
    children = {("Deployment", "good"): {"spec": {"replicas": replicas}}}
    if found is not None:
        children["HorizontalPodAutoscaler", "good"] = found
    return scaling(service(**fields), Bounds(1, 4), children, ready)


GOING = [
    (hpa(), 2, "at 2, as many as the load asks for"),
    (hpa(desired=3), 2, "goes from 2 to 3 replicas with the load"),
    (hpa(desired=1), 2, "goes from 2 to 1 replicas with the load"),
    (hpa(), 1, "at 2 (1 is still loading), as many as the load asks for"),
    (
        hpa(("ScalingLimited", "True", "TooManyReplicas")),
        1,
        "at maxReplicas 2 (1 is still loading), though the load asks for more: raise spec.autoscaling.maxReplicas",
    ),
    (hpa(("ScalingLimited", "True", "TooFewReplicas")), 2, "at minReplicas 2: the load asks for no more"),
    (
        hpa(("AbleToScale", "True", "ScaleDownStabilized"), ("ScalingLimited", "True", "TooFewReplicas")),
        2,
        "held at 2: fewer would be enough; they are removed once they have not been needed for 600 s",
    ),
    (
        hpa(("AbleToScale", "True", "ScaleUpStabilized")),
        2,
        "held at 2: more are needed; they are added once they have been needed for 30 s",
    ),
    (
        hpa(("ScalingLimited", "True", "ScaleUpLimit")),
        2,
        "at 2, and grows as fast as spec.autoscaling.behavior lets it",
    ),
]


@pytest.mark.parametrize(("found", "ready", "sentence"), GOING, ids=[row[2] for row in GOING])
def test_where_it_goes(found: dict[str, Any], ready: int, sentence: str) -> None:
    scaled = judged(found, ready=ready)
    assert scaled.scaling_active() == ("True", Reason.VALID_METRIC_FOUND, sentence)
    assert scaled.status().message == sentence


def test_at_min_replicas_no_scale_down_is_said_to_be_delayed() -> None:
    idle = hpa(("AbleToScale", "True", "ScaleDownStabilized"), desired=1)
    assert judged(idle, replicas=1, ready=1).scaling_active()[2] == "at minReplicas 1: the load asks for no more"


def test_a_metrics_api_that_is_down_is_reported_in_its_own_words() -> None:
    down = hpa(("ScalingActive", "False", "FailedGetExternalMetric"), message=UNAVAILABLE)
    status, reason, sentence = judged(down).scaling_active()
    assert (status, reason) == ("False", Reason.FAILED_GET_EXTERNAL_METRIC)
    assert sentence == (
        "held at 2: the load is not known: the server is currently unable to handle the request (get "
        "octavo_requests_waiting.external.metrics.k8s.io) (to see which server answers: kubectl get apiservice "
        "v1beta1.external.metrics.k8s.io)"
    )


def test_of_several_autoscalers_one_is_to_be_kept() -> None:
    said = "pods by selector a=b are controlled by multiple HPAs: [llm/mine llm/good]"
    sentence = judged(hpa(("ScalingActive", "False", "AmbiguousSelector"), message=said)).scaling_active()[2]
    assert sentence == f"held at 2: {said}; none of llm/mine llm/good scales while there are several: keep one"


def test_before_a_replica_is_ready_an_unknown_load_is_no_fault() -> None:
    unknown = hpa(("ScalingActive", "False", "FailedGetExternalMetric"), message=UNAVAILABLE)
    status, reason, sentence = judged(unknown, ready=0).scaling_active()
    assert (status, reason) == ("False", Reason.AUTOSCALER_PENDING)
    assert sentence.startswith("held at 2: the load is not known")


TROUBLES = [
    (None, Reason.AUTOSCALER_PENDING, "held at 2: the HorizontalPodAutoscaler has not been created yet"),
    ({"status": {}}, Reason.AUTOSCALER_PENDING, "held at 2: the HorizontalPodAutoscaler has no status yet"),
    (hpa(("AbleToScale", "False", "FailedGetScale"), message="none"), Reason.FAILED_GET_SCALE, "held at 2: none"),
    (hpa(("ScalingActive", "False", "NewReason"), message="new"), Reason.AUTOSCALER_FAILED, "held at 2: new"),
]  # fmt: skip


@pytest.mark.parametrize(("found", "reason", "sentence"), TROUBLES, ids=[row[2] for row in TROUBLES])
def test_what_keeps_it_from_scaling(found: dict[str, Any] | None, reason: Reason, sentence: str) -> None:
    assert judged(found).scaling_active() == ("False", reason, sentence)


def test_why_there_is_no_autoscaler_is_reported() -> None:
    children = {("Deployment", "good"): {"spec": {"replicas": 2}}}
    unmade = scaling(service(), Bounds(1, 4), children, 2, "KEDA has no source to ask")
    assert unmade.scaling_active() == ("False", Reason.AUTOSCALER_FAILED, "held at 2: KEDA has no source to ask")


def test_the_status_has_the_autoscalers_metrics_and_desired_replicas() -> None:
    status = judged(hpa(desired=3, octavo_requests_waiting="2500m", octavo_requests_in_flight="7")).status()
    assert (status.desired_replicas, status.queue_depth, status.concurrency_percent) == (3, "2.5", 70)
    assert status.last_scale_time == "2026-01-01T00:00:00Z"
    less_than_nothing = judged(hpa(octavo_requests_waiting="-1", octavo_requests_in_flight="7")).status()
    assert (less_than_nothing.queue_depth, less_than_nothing.concurrency_percent) == (None, 70)
    none = judged(None).status()
    assert (none.desired_replicas, none.queue_depth, none.concurrency_percent) == (None, None, None)


def test_kedas_own_autoscaler_says_the_same() -> None:
    metrics = {"s0-metric-api-waiting": "4", "s1-metric-api-inFlight": "5"}
    children = {
        ("Deployment", "good"): {"spec": {"replicas": 2}},
        ("ScaledObject", "good"): {"metadata": {"name": "good"}},
        ("HorizontalPodAutoscaler", "keda-hpa-good"): hpa(**metrics),
    }
    scaled = scaling(service(), Bounds(1, 4), children, 2)
    assert (scaled.status().queue_depth, scaled.status().concurrency_percent) == ("4", 50)
    del children["HorizontalPodAutoscaler", "keda-hpa-good"]
    assert (
        "KEDA has not created its HorizontalPodAutoscaler yet"
        in scaling(service(), Bounds(1, 4), children, 2).scaling_active()[2]
    )


def test_remarks_follow_the_sentence() -> None:
    planned = {"name": "night", "start": "0 22 * * *", "duration": "8h", "minReplicas": 1, "maxReplicas": 2}
    wanted = service(minReplicas=0, schedules=[planned])
    bounds = Bounds(0, 2, ("night",), None, ("schedule day is ignored: there is no time zone 'Mars'",))
    children = {("Deployment", "good"): {"spec": {"replicas": 1}}, ("HorizontalPodAutoscaler", "good"): hpa(desired=1)}
    assert scaling(wanted, bounds, children, 1).scaling_active()[2] == (
        "at 1, as many as the load asks for; schedule day is ignored: there is no time zone 'Mars'; schedule night "
        "sets 1 to 2; minReplicas 0 acts as 1, since without a replica nothing could report that requests wait"
    )


@pytest.mark.parametrize(
    ("seconds", "wanted", "behavior", "words"),
    [
        (12, 4, None, ", all at once, since one loads in 12 s"),
        (240, 4, None, ", some at a time, since one takes 240 s to load"),
        (12, 1, None, ""),
        (12, 4, {"scaleUp": {"stabilizationWindowSeconds": 5}}, ""),
        (None, 4, None, ""),
    ],
)
def test_it_says_why_it_adds_so_many_at_a_time(
    seconds: int | None, wanted: int, behavior: dict[str, Any] | None, words: str
) -> None:
    made = service(**({"behavior": behavior} if behavior else {}))
    made = made.model_copy(update={"status": {"loading": {"lastLoadSeconds": seconds}}})
    children = {
        ("Deployment", "good"): {"spec": {"replicas": 2}},
        ("HorizontalPodAutoscaler", "good"): hpa(desired=wanted),
    }
    message = scaling(made, Bounds(1, 4), children, 2).scaling_active()[2]
    assert message == f"goes from 2 to {wanted} replicas with the load{words}"
