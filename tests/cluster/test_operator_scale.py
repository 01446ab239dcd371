"""The operator's bench on a small scale, without times: it runs, and an idle operator writes nothing."""

from __future__ import annotations

import pytest

from bench.operator_scale import Plan, measure
from bench.operator_scale_report import page

from .client import Client
from .octavo import installed_operator

SMALL = Plan(services=30, idle_seconds=10, changes=5, quiet_seconds=3, gated=True)


@pytest.mark.timeout(600)
def test_an_operator_with_nothing_to_do_writes_nothing(cluster: Client, request: pytest.FixtureRequest) -> None:
    with installed_operator(cluster) as system:
        measured = measure(cluster, system, SMALL, print)
    assert measured.idle_writes == 0
    assert measured.idle_changed_objects == 0
    assert measured.takeover_writes == 0
    assert measured.takeover_rss_mib > 0
    assert len(measured.changes_after) == SMALL.changes
    assert measured.samples[-1].children == 3 * SMALL.services


def test_the_page_names_what_was_seen() -> None:
    sample = {"seconds": 1, "rss_mib": 123.4, "children": 3}
    result = {"plan": {"services": 1, "replicas": 1}, "machine": {"cores": 2, "cpu": "x"}, "samples": [sample],
              "all_children": 1.5, "all_reported": 2.5, "changes_in_burst": [], "changes_after": [0.1, 0.3],
              "idle_seconds": 10, "idle_writes": 0, "idle_changed_objects": 0, "idle_cpu_percent": 0.5,
              "takeover_seconds": 1.0, "takeover_writes": 0.0, "takeover_rss_mib": 98.7, "repeated_requests": 0,
              "load_before": 0.5}  # fmt: skip
    text = page("a-title", result)
    assert "| from the first apply to all children | 1.5 s |" in text
    assert "p50 100 ms, p99 300 ms" in text
    assert "123 MiB" in text
    assert "| resident memory of the new leader, most | 99 MiB |" in text
