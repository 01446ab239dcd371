"""The rendered autoscalers: a HorizontalPodAutoscaler or KEDA's ScaledObject, and their speed."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from octavo_operator.api.resource import LLMService, parse
from octavo_operator.render import RenderConfig, render
from octavo_operator.render.scaler import why_no_scaler
from tests.operator.bad_llmservices import VALID, merged
from tests.operator.published_schemas import validate

KEDA = frozenset({"ScaledObject"})


def service(status: dict[str, Any] | None = None, spec: dict[str, Any] | None = None, **fields: Any) -> LLMService:
    autoscaling = {"minReplicas": 1, "maxReplicas": 4, **fields}
    return parse(merged(VALID, {"spec": {"autoscaling": autoscaling, **(spec or {})}, "status": status or {}}))


def rendered(service: LLMService, kinds: frozenset[str] = frozenset(), **config: Any) -> dict[str, dict[str, Any]]:
    return {each["kind"]: each for each in render(service, RenderConfig("image", kinds, **config))}


def hpa(service: LLMService, **config: Any) -> dict[str, Any]:
    spec: dict[str, Any] = rendered(service, **config)["HorizontalPodAutoscaler"]["spec"]
    return spec


def test_targets_are_per_replica_and_of_this_service_alone() -> None:
    wanted = service(targetQueueDepth=3, targetConcurrencyPercent=70, spec={"engine": {"maxConcurrentRequests": 10}})
    waiting, in_flight = [metric["external"] for metric in hpa(wanted)["metrics"]]
    assert waiting["metric"] == {"name": "octavo_requests_waiting", "selector": {"matchLabels": {"llmservice": "good"}}}
    assert waiting["target"] == {"type": "AverageValue", "averageValue": "3"}
    assert in_flight["metric"]["name"] == "octavo_requests_in_flight"
    assert in_flight["target"]["averageValue"] == "7"


def test_the_target_in_flight_is_never_nothing() -> None:
    tiny = service(targetConcurrencyPercent=1, spec={"engine": {"maxConcurrentRequests": 1}})
    assert hpa(tiny)["metrics"][1]["external"]["target"]["averageValue"] == "1"


LOADS = [(None, 600), (4, 300), (100, 300), (101, 360), (1200, 3600), (9000, 3600)]


@pytest.mark.parametrize(("load_seconds", "window"), LOADS)
def test_replicas_that_load_long_are_not_given_up_soon(load_seconds: int | None, window: int) -> None:
    loaded = service({"loading": {"lastLoadSeconds": load_seconds}})
    assert hpa(loaded)["behavior"]["scaleDown"]["stabilizationWindowSeconds"] == window


def test_what_the_spec_says_of_behavior_wins_field_by_field() -> None:
    policy = {"type": "Pods", "value": 7, "periodSeconds": 5}
    given = {"scaleUp": {"policies": [policy]}, "scaleDown": {"stabilizationWindowSeconds": 0}}
    found = hpa(service(behavior=given))["behavior"]
    assert found["scaleUp"] == {"stabilizationWindowSeconds": 30, "selectPolicy": "Max", "policies": [policy]}
    assert found["scaleDown"]["stabilizationWindowSeconds"] == 0
    assert found["scaleDown"]["policies"] == [{"type": "Pods", "value": 1, "periodSeconds": 120}]


def test_a_schedule_sets_the_bounds_while_it_is_in_force() -> None:
    schedule = {"name": "s", "start": "0 8 * * *", "duration": "1h", "minReplicas": 2, "maxReplicas": 9}
    planned = service(schedules=[schedule])
    for hour, expected in ((7, (1, 4)), (8, (2, 9)), (9, (1, 4))):
        spec = hpa(planned, now=datetime(2026, 1, 1, hour, tzinfo=UTC))
        assert (spec["minReplicas"], spec["maxReplicas"]) == expected


def test_no_replica_at_all_is_never_asked_for() -> None:
    assert hpa(service(minReplicas=0))["minReplicas"] == 1
    keda = rendered(service(minReplicas=0, metricsSource="KEDA"))["ScaledObject"]
    assert keda["spec"]["minReplicaCount"] == 1


SOURCES = [
    ("Auto", frozenset(), True, "HorizontalPodAutoscaler"),
    ("Auto", KEDA, True, "ScaledObject"),
    ("Auto", KEDA, False, "HorizontalPodAutoscaler"),  # KEDA's CRDs alone do not make KEDA answer
    ("Builtin", KEDA, True, "HorizontalPodAutoscaler"),
    ("Prometheus", KEDA, True, "HorizontalPodAutoscaler"),
    ("KEDA", frozenset(), False, "ScaledObject"),
]


@pytest.mark.parametrize(("source", "kinds", "others", "expected"), SOURCES)
def test_who_scales(source: str, kinds: frozenset[str], others: bool, expected: str) -> None:
    found = rendered(service(metricsSource=source), kinds, others_answer=others)
    assert {"HorizontalPodAutoscaler", "ScaledObject"} & set(found) == {expected}
    assert "replicas" not in found["Deployment"]["spec"]


@pytest.mark.parametrize(("source", "expected"), [("Auto", {"HorizontalPodAutoscaler"}), ("KEDA", set())])
def test_without_a_metrics_api_nothing_points_keda_at_one(source: str, expected: set[str]) -> None:
    wanted = service(metricsSource=source)
    found = rendered(wanted, KEDA, others_answer=True, metrics_url="")
    assert {"HorizontalPodAutoscaler", "ScaledObject"} & set(found) == expected
    assert "replicas" not in found["Deployment"]["spec"]
    assert bool(why_no_scaler(wanted.spec, "")) == (not expected)
    assert not why_no_scaler(wanted.spec, "http://metrics:8080")


@pytest.mark.parametrize(("seconds", "quick"), [(1, True), (60, True), (61, False), (None, False)])
def test_all_that_are_lacking_are_added_at_once_where_replicas_load_in_seconds(
    seconds: int | None, quick: bool
) -> None:
    loaded = service({"loading": {"lastLoadSeconds": seconds} if seconds else {}})
    up = hpa(loaded)["behavior"]["scaleUp"]
    at_once = {"type": "Pods", "value": 1000, "periodSeconds": 15}
    assert (up["stabilizationWindowSeconds"] == 0, at_once in up["policies"]) == (quick, quick)


def test_suspension_wins_over_autoscaling() -> None:
    found = rendered(service(spec={"suspend": True}))
    assert not {"HorizontalPodAutoscaler", "ScaledObject"} & set(found)
    assert found["Deployment"]["spec"]["replicas"] == 0


def test_keda_asks_octavos_metrics_api_for_the_same_numbers() -> None:
    spec = rendered(service(metricsSource="KEDA"), metrics_url="http://metrics:8080/")["ScaledObject"]["spec"]
    assert spec["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "good"}
    waiting, in_flight = spec["triggers"]
    assert {trigger["metricType"] for trigger in spec["triggers"]} == {"AverageValue"}
    assert waiting["metadata"] == {
        "url": "http://metrics:8080/namespaces/default/llmservices/good",
        "format": "json",
        "valueLocation": "waiting",
        "targetValue": "4",
    }
    assert in_flight["metadata"]["valueLocation"] == "inFlight"
    behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert behavior == hpa(service())["behavior"]


def test_an_autoscaler_has_only_fields_that_kubernetes_has() -> None:
    validate(rendered(service())["HorizontalPodAutoscaler"], "1.36")


@pytest.mark.parametrize(
    ("source", "made"),
    [("Auto", set()), ("Builtin", set()), ("Prometheus", {"HorizontalPodAutoscaler"}), ("KEDA", {"ScaledObject"})],
)
def test_where_the_operator_scales_by_itself_nothing_asks_the_metrics_api(source: str, made: set[str]) -> None:
    found = rendered(service(metricsSource=source), scales_directly=True)
    assert {"HorizontalPodAutoscaler", "ScaledObject"} & set(found) == made
    assert "replicas" not in found["Deployment"]["spec"]
