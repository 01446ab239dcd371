"""The load time is measured on pods that serve, not on others."""

from __future__ import annotations

from typing import Any

from octavo_operator.reconcile.status.load_time import last_load_seconds

TIMEOUT = 1800


def pod(start: str, engine: str, ready: str, *, restarts: int = 0, status: str = "True") -> dict[str, Any]:
    def at(time: str) -> str:
        return f"2026-01-01T{time}Z"

    running = {"name": "engine", "restartCount": restarts, "state": {"running": {"startedAt": at(engine)}}}
    return {
        "metadata": {"name": "p"},
        "status": {
            "startTime": at(start),
            "conditions": [{"type": "Ready", "status": status, "lastTransitionTime": at(ready)}],
            "containerStatuses": [{"name": "sidecar", "state": {}}, running],
        },
    }


def measured(*pods: dict[str, Any], before: int | None = None) -> int | None:
    return last_load_seconds(pods, TIMEOUT, before)


def test_from_the_start_of_the_pod_until_it_is_ready_fetching_included() -> None:
    assert measured(pod("10:00:00", "10:02:00", "10:03:30")) == 210


def test_the_pod_that_became_ready_last_counts() -> None:
    assert measured(pod("10:00:00", "10:00:00", "10:03:00"), pod("11:00:00", "11:00:00", "11:01:00")) == 60
    assert measured(pod("11:00:00", "11:00:00", "11:01:00"), pod("10:00:00", "10:00:00", "10:03:00")) == 60


def test_after_a_restart_of_the_container_it_counts_from_there() -> None:
    assert measured(pod("10:00:00", "12:00:00", "12:00:40", restarts=1)) == 40


def test_a_pod_that_was_not_ready_for_a_while_is_no_measure() -> None:
    assert measured(pod("10:00:00", "10:00:10", "17:00:00"), before=75) == 75


def test_without_a_pod_that_serves_what_was_known_stays() -> None:
    loading = pod("10:00:00", "10:00:10", "10:00:00", status="False")
    assert measured(loading, {"metadata": {"name": "new"}}, before=75) == 75
    assert measured() is None
