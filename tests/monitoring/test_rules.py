"""The alerts about services, tested with promtool: each fires when it should, and none for a healthy service."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from octavo_engine.engine.client import EngineState
from octavo_engine.server.telemetry.metrics import Metrics
from octavo_operator.render.prometheusrule import ALERTS, rule_group
from tests.monitoring.promtool import check, firing

RULES = [rule_group("llm", "good")]
MATCHERS = 'namespace="llm",llmservice="good",pod="good-1"'
OTHER = 'namespace="llm",llmservice="other",pod="other-1"'


@dataclass(frozen=True)
class Case:
    """One value a minute for each series, in promtool's notation, and the minute at which is looked."""

    alert: str
    minute: int
    fires: dict[str, str]
    stays_quiet: dict[str, str]


def _first_token(seconds: float, per_minute: int = 10, minutes: int = 30) -> dict[str, str]:
    """First tokens that all come after `seconds`, in the buckets of the real engine."""
    engine = Metrics("m", EngineState, lambda: 0)
    engine.first_token.observe(seconds)
    return {
        f'{sample.name}{{le="{sample.labels["le"]}"}}': f"0+{round(sample.value) * per_minute}x{minutes}"
        for family in text_string_to_metric_families(engine.render().decode())
        for sample in family.samples
        if sample.name == "octavo_time_to_first_token_seconds_bucket"
    }


def _throughput(before: int, now: int) -> dict[str, str]:
    """Tokens a minute for a day, and then for an hour; all the while requests wait."""
    return {
        "octavo_generation_tokens_total": f"0+{before}x1500 {1500 * before}+{now}x60",
        "octavo_requests_running": "3+0x1560",
        "octavo_requests_waiting": "5+0x1560",
    }


def _of_two_replicas(gauge: str, values: str) -> dict[str, str]:
    return {f'{gauge}{{instance="{number}"}}': values for number in (1, 2)}


def _outcomes(errors: int, good: int) -> dict[str, str]:
    return {
        'octavo_requests_total{outcome="error"}': f"0+{errors}x30",
        'octavo_requests_total{outcome="stop"}': f"0+{good}x30",
    }


CASES = [
    Case(
        "OctavoTimeToFirstTokenHigh",
        20,
        _first_token(2.1),
        _first_token(1.9),
    ),
    Case(
        "OctavoKVCacheNearlyFull",
        15,
        {"octavo_kv_cache_usage_ratio": "0.95+0x30"},
        {"octavo_kv_cache_usage_ratio": "0.88+0x30"},
    ),
    Case("OctavoThroughputLow", 1530, _throughput(6000, 2800), _throughput(6000, 3600)),
    Case("OctavoErrorRateHigh", 15, _outcomes(2, 98), _outcomes(1, 199)),
    Case(
        "OctavoQueueGrowing",
        35,
        _of_two_replicas("octavo_requests_waiting", "0+0.42x60"),  # each has 4.2 more than ten minutes before
        _of_two_replicas("octavo_requests_waiting", "0+0.38x60"),
    ),
    Case(
        "OctavoRequestsRejected",
        20,
        {'octavo_requests_rejected_total{reason="queued_requests"}': "0+3x30"},
        {'octavo_requests_rejected_total{reason="unauthorized"}': "0+3x30"},
    ),
    Case(
        "OctavoNoTokens",
        15,
        {"octavo_requests_running": "2+0x30", "octavo_generation_tokens_total": "500+0x30"},
        {"octavo_requests_running": "2+0x30", "octavo_generation_tokens_total": "500+1x30"},
    ),
    Case(
        "OctavoPreemptionStorm",
        20,
        {"octavo_preemptions_total": "0+20x30", 'octavo_requests_total{outcome="stop"}': "0+10x30"},
        {"octavo_preemptions_total": "0+2x30", 'octavo_requests_total{outcome="stop"}': "0+10x30"},
    ),
    Case(
        "OctavoEngineRestarted",
        10,
        {"process_start_time_seconds": "1000+0x5 1320+0x20"},
        {"process_start_time_seconds": "1000+0x30"},
    ),
]
WELL = {
    **_first_token(0.3, 60, 60),
    "octavo_kv_cache_usage_ratio": "0.5+0x60",
    "octavo_requests_running": "4+0x60",
    "octavo_requests_waiting": "0 1 0 2 0 0 1 0 0 0 1+0x50",
    "octavo_generation_tokens_total": "0+6000x60",
    'octavo_requests_total{outcome="stop"}': "0+60x60",
    'octavo_requests_total{outcome="error"}': "0+0x60",
    'octavo_requests_rejected_total{reason="queued_requests"}': "0+0x60",
    "octavo_preemptions_total": "0+0x60",
    "process_start_time_seconds": "1000+0x60",
}


def _of(series: dict[str, str], matchers: str) -> dict[str, str]:
    """Return the series, each with the labels of its pod; their values are in promtool's notation."""
    found = {}
    for name_and_labels, values in series.items():
        name, _, labels = name_and_labels.partition("{")
        found[f"{name}{{{','.join(filter(None, [labels.rstrip('}'), matchers]))}}}"] = values
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.alert)
def test_it_fires_when_it_should(case: Case, tmp_path: Path) -> None:
    firing(RULES, _of(case.fires, MATCHERS), case.minute, [case.alert], tmp_path)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.alert)
def test_it_is_quiet_just_below(case: Case, tmp_path: Path) -> None:
    firing(RULES, _of(case.stays_quiet, MATCHERS), case.minute, [], tmp_path)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.alert)
def test_another_services_problem_is_not_ours(case: Case, tmp_path: Path) -> None:
    firing(RULES, _of(case.fires, OTHER), case.minute, [], tmp_path)


def test_vllms_names_have_vllms_buckets() -> None:
    """Readers compare them with vLLM's own, so buckets that only our alerts need are absent."""
    shown = Metrics("m", EngineState, lambda: 0).render().decode().splitlines()
    bounds = [line for line in shown if line.startswith("vllm:time_to_first_token_seconds_bucket")]
    assert len(bounds) == 23
    assert not [line for line in bounds if 'le="1.5"' in line or 'le="2.0"' in line]


def test_a_service_that_is_well_raises_no_alert(tmp_path: Path) -> None:
    for minute in (5, 20, 60):
        firing(RULES, _of(WELL, MATCHERS), minute, [], tmp_path)


def test_every_alert_has_a_case_and_promtool_likes_its_templates(tmp_path: Path) -> None:
    assert {case.alert for case in CASES} == {alert.name for alert in ALERTS}
    check(RULES, tmp_path)
