"""The arithmetic of a HorizontalPodAutoscaler, for the mode in which the operator scales by itself."""

from __future__ import annotations

from typing import Any

import pytest

from octavo_operator.metrics_api.hpa_algorithm import History, decide, proposal

QUICK: dict[str, Any] = {
    "stabilizationWindowSeconds": 0,
    "selectPolicy": "Max",
    "policies": [{"type": "Pods", "value": 1000, "periodSeconds": 15}],
}
CAREFUL: dict[str, Any] = {
    "stabilizationWindowSeconds": 30,
    "selectPolicy": "Max",
    "policies": [
        {"type": "Pods", "value": 1, "periodSeconds": 60},
        {"type": "Percent", "value": 100, "periodSeconds": 120},
    ],
}
DOWN: dict[str, Any] = {
    "stabilizationWindowSeconds": 300,
    "selectPolicy": "Min",
    "policies": [{"type": "Pods", "value": 1, "periodSeconds": 120}],
}


def behavior(up: dict[str, Any] = QUICK, down: dict[str, Any] = DOWN) -> dict[str, Any]:
    return {"scaleUp": up, "scaleDown": down}


@pytest.mark.parametrize(
    ("current", "loads", "proposed"),
    [
        (1, [(28, 4), (0, 51)], 7),  # a queue of seven times its target
        (3, [(0, 4), (140, 51)], 3),
        (2, [(8.7, 4)], 2),  # within the tolerance
        (2, [(9, 4)], 3),
        (4, [(0, 4), (0, 51)], 0),
        (0, [(5, 4)], 2),
    ],
)
def test_the_larger_of_both_numbers_decides(current: int, loads: list[tuple[float, float]], proposed: int) -> None:
    assert proposal(current, loads) == proposed


def replicas(proposals: list[tuple[float, int]], rules: dict[str, Any], start: int = 1, most: int = 8) -> list[int]:
    """The replicas after each of the proposals, each with its time."""
    history, found, current = History(), [], start
    for now, proposed in proposals:
        after = decide(current, proposed, 1, most, rules, history, now).replicas
        history.changes.append((now, after - current))
        found.append(current := after)
    return found


def test_the_whole_shortfall_is_added_at_once_where_replicas_load_in_seconds() -> None:
    assert replicas([(0, 3)], behavior()) == [3]


def test_it_grows_carefully_where_they_load_in_minutes() -> None:
    asked = [(float(second), 8) for second in range(0, 181, 15)]
    # After the window, doubled once in two minutes, or by one a minute, whichever is more.
    assert replicas([(0, 1), *asked[1:]], behavior(CAREFUL)) == [1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4]


def test_a_period_counts_from_the_replicas_at_its_start_whichever_way_they_changed_since() -> None:
    """As in calculateScaleUpLimitWithScalingRules and its counterpart for scaling down of Kubernetes 1.36."""
    rule = {"stabilizationWindowSeconds": 0, "selectPolicy": "Max"}
    doubled = {**rule, "policies": [{"type": "Percent", "value": 100, "periodSeconds": 60}]}
    by_two = {**rule, "policies": [{"type": "Pods", "value": 2, "periodSeconds": 60}]}
    assert replicas([(0, 4), (20, 2), (40, 4)], behavior(doubled, by_two), start=2) == [4, 2, 4]
    assert replicas([(0, 2), (20, 4), (40, 2)], behavior(doubled, by_two), start=4) == [2, 4, 2]


def test_a_peak_that_is_over_before_the_window_adds_nothing() -> None:
    assert replicas([(0, 1), (15, 8), (30, 1), (45, 1)], behavior(CAREFUL)) == [1, 1, 1, 1]


def test_it_shrinks_by_one_after_the_window() -> None:
    asked = [(0.0, 4), *((float(second), 1) for second in range(15, 601, 15))]
    found = replicas(asked, behavior(), start=4)
    assert [found.index(count) * 15 for count in (3, 2, 1)] == [300, 420, 540]


def test_a_new_leader_gives_nothing_up_before_the_window_has_passed() -> None:
    assert replicas([(0, 1), (299, 1), (301, 1)], behavior(), start=3) == [3, 3, 2]


def test_bounds_win_and_the_reason_is_reported() -> None:
    assert decide(2, 9, 1, 4, behavior(), History(), 0).reason == "TooManyReplicas"
    at_once_down = {**DOWN, "stabilizationWindowSeconds": 0}
    history = History(proposals=[(0, 4)])
    assert decide(4, 0, 2, 4, behavior(down=at_once_down), history, 1).replicas == 3
    assert decide(1, 0, 2, 4, behavior(), History(), 0).replicas == 2
    at_once = {**CAREFUL, "stabilizationWindowSeconds": 0}
    assert decide(1, 8, 1, 8, behavior(at_once), History(), 0).reason == "ScaleUpLimit"
    disabled = {**DOWN, "stabilizationWindowSeconds": 0, "selectPolicy": "Disabled"}
    assert decide(4, 1, 1, 4, behavior(down=disabled), History(), 0).replicas == 4
