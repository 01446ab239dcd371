"""Times of objects are compared with the API server's clock, not with this machine's."""

from __future__ import annotations

import pytest

from octavo_operator.reconcile.api_requests.server_clock import ServerClock

NOON = 1767268800.0  # 2026-01-01 12:00:00 UTC


@pytest.mark.parametrize("local", [NOON - 7200, NOON - 6, NOON + 6, NOON + 86400])
def test_a_machine_whose_clock_is_wrong_goes_by_the_api_servers(local: float) -> None:
    clock = ServerClock(lambda: local)
    clock.note_date("Thu, 01 Jan 2026 12:00:00 GMT")
    assert clock.now() == "2026-01-01T12:00:00Z"


def test_a_difference_of_seconds_or_an_answer_without_a_time_changes_nothing() -> None:
    clock = ServerClock(lambda: NOON + 4)
    for date in ("Thu, 01 Jan 2026 12:00:00 GMT", None, "", "yesterday"):
        clock.note_date(date)
        assert clock.now() == "2026-01-01T12:00:04Z"


def test_a_difference_that_a_slow_answer_explains_is_none() -> None:
    clock = ServerClock(lambda: NOON + 12)
    clock.note_date("Thu, 01 Jan 2026 12:00:00 GMT", took=8)
    assert clock.now() == "2026-01-01T12:00:12Z"
    clock.note_date("Thu, 01 Jan 2026 12:00:00 GMT", took=6)
    assert clock.now() == "2026-01-01T12:00:00Z"


def test_a_clock_that_is_set_right_is_believed_again(caplog: pytest.LogCaptureFixture) -> None:
    now = NOON - 3600
    clock = ServerClock(lambda: now)
    for _ in range(3):
        clock.note_date("Thu, 01 Jan 2026 12:00:00 GMT")
    assert len(caplog.records) == 1
    now = NOON + 1
    clock.note_date("Thu, 01 Jan 2026 12:00:00 GMT")
    assert clock.now() == "2026-01-01T12:00:01Z"
