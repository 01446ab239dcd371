"""The chart's alerts about the operator, as helm renders them, tested with promtool."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.build import HELM, ensure_built, program
from tests.cluster.octavo import CHART
from tests.monitoring.promtool import check, firing
from tests.quick_yaml import load_all

LEADER = 'namespace="system",pod="octavo-operator-1"'
OTHER = 'namespace="system",pod="octavo-operator-2"'
ELSEWHERE = 'namespace="elsewhere",pod="octavo-operator-1"'
LEADS = {f"octavo_operator_leader{{{LEADER}}}": "1+0x30", f"octavo_operator_leader{{{OTHER}}}": "0+0x30"}
SERVICE = 'namespace="llm",name="good",pod="octavo-operator-1"'
SECOND = 'namespace="llm",name="good",pod="another-operator-1"'
PODS = 'namespace="llm",llmservice="good",pod="good-1"'


def condition(kind: str, value: int, status: str = "True") -> dict[str, str]:
    """The operator's metric of an LLMService's condition, for half an hour."""
    return {f'octavo_llmservice_condition{{{SERVICE},type="{kind}",status="{status}"}}': f"{value}+0x30"}


def wanted(replicas: int, service: str = SERVICE) -> dict[str, str]:
    return {f"octavo_llmservice_desired_replicas{{{service}}}": f"{replicas}+0x30"}


SERVES = {**condition("Available", 1), f"octavo_llmservice_monitored{{{SERVICE}}}": "1+0x30"}
SCRAPED = {f"octavo_requests_running{{{PODS}}}": "0+0x30"}
READABLE = 'octavo_operator_namespace_readable{namespace="llm",pod="octavo-operator-1"}'
RIGHT = f'octavo_operator_right_missing{{{LEADER},verb="list",resource="pods"}}'
FAULTS = "octavo_operator_reconciles_total"


@pytest.fixture(scope="module")
def groups() -> list[dict[str, Any]]:
    """The rules of a release called octavo in the namespace system."""
    ensure_built(print, (HELM,))
    helm = [str(program("helm")), "template", "octavo", str(CHART), "--namespace=system", "--kube-version=1.36.0"]
    done = subprocess.run([*helm, "--set=monitoring.enabled=Always"], capture_output=True, text=True, check=True)
    (rule,) = [found for found in load_all(done.stdout) if found["kind"] == "PrometheusRule"]
    return list(rule["spec"]["groups"])


@pytest.mark.parametrize(
    ("series", "expected"),
    [
        (LEADS, []),
        ({f"octavo_operator_leader{{{LEADER}}}": "0+0x30"}, ["OctavoOperatorWithoutLeader"]),
        ({f"octavo_operator_leader{{{ELSEWHERE}}}": "1+0x30"}, ["OctavoOperatorWithoutLeader"]),
        ({**LEADS, f"octavo_operator_queue_oldest_seconds{{{LEADER}}}": "90+0x30"}, ["OctavoOperatorBehind"]),
        ({**LEADS, f"octavo_operator_queue_oldest_seconds{{{LEADER}}}": "30+0x30"}, []),
        ({**LEADS, f'{FAULTS}{{{LEADER},result="fault"}}': "0+1x30"}, ["OctavoOperatorFaults"]),
        ({**LEADS, f'{FAULTS}{{{LEADER},result="refused"}}': "0+1x30"}, []),
        ({**LEADS, f"octavo_operator_silent_seconds{{{OTHER}}}": "1201+0x30"}, ["OctavoOperatorSilent"]),
        ({**LEADS, f"octavo_operator_silent_seconds{{{OTHER}}}": "600+0x30"}, []),
        ({**LEADS, READABLE: "0+0x30"}, ["OctavoNamespaceUnreadable"]),
        ({**LEADS, READABLE: "1+0x30"}, []),
        ({**LEADS, RIGHT: "1+0x30"}, ["OctavoRightMissing"]),
        ({**LEADS, **condition("Ready", 0), **wanted(1)}, ["OctavoLLMServiceNotReady"]),
        ({**LEADS, **condition("Ready", 0), **wanted(0)}, []),
        ({**LEADS, **condition("Ready", 1), **condition("Ready", 0, "False"), **wanted(1)}, []),
        ({**LEADS, **wanted(1), **wanted(1, SECOND)}, ["OctavoSecondOperator"]),
        ({**LEADS, **wanted(1), **wanted(1, f'{SECOND},cluster="another"')}, []),
        ({**LEADS, **wanted(1), **wanted(1, f'{SERVICE},job="another"')}, []),
        ({**LEADS, **condition("Degraded", 1)}, ["OctavoLLMServiceDegraded"]),
        ({**LEADS, **condition("Degraded", 0), **condition("Degraded", 1, "Unknown")}, []),
        ({**LEADS, **condition("RolloutBlocked", 1)}, ["OctavoRolloutStuck"]),
        ({**LEADS, **condition("RolloutBlocked", 0)}, []),
        ({**LEADS, **SERVES}, ["OctavoTargetsAbsent"]),
        ({**LEADS, **SERVES, **SCRAPED}, []),
        ({**LEADS, **condition("Available", 1)}, []),
    ],
)
def test_what_fires(groups: list[dict[str, Any]], series: dict[str, str], expected: list[str], tmp_path: Path) -> None:
    firing(groups, series, 20, expected, tmp_path)


def test_promtool_likes_the_templates(groups: list[dict[str, Any]], tmp_path: Path) -> None:
    check(groups, tmp_path)
