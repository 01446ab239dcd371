"""The limit on how often something is done for each key."""

from __future__ import annotations

from octavo_operator.reconcile.pace import Pace


def test_a_burst_is_as_large_as_it_is_said_to_be_and_a_steady_pace_follows() -> None:
    now = [0.0]
    pace = Pace[str](20, 10.0, lambda: now[0])
    turns = 0
    while pace.seconds_left("a") <= 0:
        pace.note("a")
        turns += 1
    assert (turns, pace.seconds_left("a"), pace.seconds_left("b") <= 0) == (20, 10.0, True)
    now[0] = 10.0
    assert pace.seconds_left("a") == 0
    pace.note("a")
    assert pace.seconds_left("a") == 10.0


def test_keys_are_forgotten_once_they_may_have_all_of_their_turns() -> None:
    now = [0.0]
    pace = Pace[int](2, 1.0, lambda: now[0])
    for key in range(100):
        now[0] = key / 10
        pace.note(key)
    assert len(pace._until) == 10
