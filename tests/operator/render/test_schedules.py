"""The autoscaling bounds in force at a time: in time zones, over clock changes, and with overlaps."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim

from octavo_operator.api.autoscaling import Autoscaling
from octavo_operator.api.fields import seconds
from octavo_operator.render import schedules
from octavo_operator.render.schedules import bounds

BERLIN = ZoneInfo("Europe/Berlin")


def autoscaling(*schedules: dict[str, Any], **fields: Any) -> Autoscaling:
    return Autoscaling.model_validate({"minReplicas": 1, "maxReplicas": 8, "schedules": list(schedules), **fields})


def schedule(start: str = "0 8 * * 1-5", **fields: Any) -> dict[str, Any]:
    known = {"name": "work", "timeZone": "Europe/Berlin", "start": start, "duration": "10h"}
    return {**known, "minReplicas": 3, "maxReplicas": 6, **fields}


def berlin(*when: int) -> datetime:
    return datetime(*when, tzinfo=BERLIN)  # type: ignore[misc, arg-type]


MONDAY = (2026, 11, 23)

MOMENTS = [
    ("before", berlin(*MONDAY, 7, 59, 59), (1, 8), berlin(*MONDAY, 8)),
    ("at its start", berlin(*MONDAY, 8), (3, 6), berlin(*MONDAY, 18)),
    ("in the middle", berlin(*MONDAY, 12), (3, 6), berlin(*MONDAY, 18)),
    ("a moment before its end", datetime(*MONDAY, 16, 59, 59, 999_999, tzinfo=UTC), (3, 6), berlin(*MONDAY, 18)),
    ("at its end", berlin(*MONDAY, 18), (1, 8), berlin(2026, 11, 24, 8)),
    ("on a weekend", berlin(2026, 11, 21, 12), (1, 8), berlin(*MONDAY, 8)),
]


@pytest.mark.parametrize(("now", "expected", "until"), [row[1:] for row in MOMENTS], ids=[row[0] for row in MOMENTS])
def test_a_schedule_is_in_force_from_its_start_for_its_duration(
    now: datetime, expected: tuple[int, int], until: datetime
) -> None:
    found = bounds(autoscaling(schedule()), now)
    assert (found.min_replicas, found.max_replicas) == expected
    assert found.until == until
    assert found.schedules == (("work",) if expected == (3, 6) else ())


def test_without_schedules_nothing_ever_changes() -> None:
    found = bounds(autoscaling(), berlin(*MONDAY, 12))
    assert (found.min_replicas, found.max_replicas, found.until) == (1, 8, None)


def test_a_single_schedule_may_also_lower_the_bounds() -> None:
    night = schedule("0 22 * * *", name="night", duration="8h", minReplicas=1, maxReplicas=2)
    found = bounds(autoscaling(night, minReplicas=4), berlin(*MONDAY, 3))
    assert (found.min_replicas, found.max_replicas) == (1, 2)


def test_of_schedules_that_overlap_the_larger_bounds_win() -> None:
    peak = schedule("0 11 * * *", name="peak", duration="2h", minReplicas=5, maxReplicas=5)
    found = bounds(autoscaling(schedule(), peak), berlin(*MONDAY, 12))
    assert (found.min_replicas, found.max_replicas, found.schedules) == (5, 6, ("work", "peak"))
    assert found.until == berlin(*MONDAY, 13)


def test_a_schedule_longer_than_its_period_never_ends() -> None:
    always = schedule("0 8 * * *", duration="30h")
    now = berlin(*MONDAY, 7)
    for _ in range(5):
        found = bounds(autoscaling(always), now)
        assert found.schedules == ("work",)
        assert found.until is not None
        now = found.until


@pytest.mark.parametrize("duration", ["99999999h", "999999999999999h"])
def test_a_duration_beyond_the_calendar_lasts_a_century(duration: str) -> None:
    found = bounds(autoscaling(schedule(duration=duration)), berlin(*MONDAY, 12))
    assert found.schedules == ("work",)
    assert found.until is not None
    assert found.until.year == MONDAY[0] + 100


def test_a_duration_is_time_that_passes_also_when_clocks_are_changed() -> None:
    """On 2026-03-29 clocks in Berlin go from 02:00 to 03:00: eight hours from 22:00 end at 07:00 there."""
    night = schedule("0 22 * * *", name="night", duration="8h")
    assert bounds(autoscaling(night), berlin(2026, 3, 29, 0)).until == berlin(2026, 3, 29, 7)


NEVER = [
    (schedule(timeZone="Mars/Olympus"), "there is no time zone 'Mars/Olympus'"),
    (schedule(timeZone="Europe"), "there is no time zone 'Europe'"),
    (schedule("0 0 31 2 *"), "start '0 0 31 2 *' never comes"),
    (schedule("0 0 * * 5-1"), "start '0 0 * * 5-1' never comes"),
]


@pytest.mark.parametrize(("wrong", "words"), NEVER, ids=[row[1] for row in NEVER])
def test_a_schedule_that_can_never_start_is_reported_and_harms_no_other(wrong: dict[str, Any], words: str) -> None:
    found = bounds(autoscaling({**wrong, "name": "wrong"}, schedule()), berlin(*MONDAY, 12))
    assert found.schedules == ("work",)
    (sentence,) = found.ignored
    assert sentence.startswith("schedule wrong is ignored: ")
    assert words in sentence


def test_a_start_is_looked_for_once_in_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reconcile asks several times, and a rare start takes milliseconds, in which the whole operator stands still."""
    asked: list[datetime] = []

    def counted(expression: str, moment: datetime, **how: bool) -> CronSim:
        asked.append(moment)
        return CronSim(expression, moment, **how)

    monkeypatch.setattr(schedules, "CronSim", counted)
    rare = autoscaling(*(schedule("7 3 29 2 *", name=f"s{number}") for number in range(16)))
    found = {bounds(rare, berlin(*MONDAY, 12, 0, second)).until for second in (0, 1, 59)}
    assert found == {berlin(2028, 2, 29, 3, 7)}
    assert len(asked) == 2, "the last one and the next one"
    bounds(rare, berlin(*MONDAY, 12, 1))
    assert len(asked) == 4


def test_the_second_of_a_start_and_the_one_before_differ() -> None:
    """Though nothing is looked for between whole minutes."""
    every = schedule("* * * * *", duration="20s")
    in_force = [bounds(autoscaling(every), berlin(*MONDAY, 7, 59, second)).schedules for second in (0, 19, 20, 59)]
    assert in_force == [("work",), ("work",), (), ()]
    assert bounds(autoscaling(every), berlin(*MONDAY, 7, 59, 59)).until == berlin(*MONDAY, 8)


@pytest.mark.parametrize(("text", "length"), [("10h", 36_000), ("1h30m", 5400), ("15s", 15), ("1h1m1s", 3661)])
def test_durations(text: str, length: int) -> None:
    assert seconds(text) == length
