"""Selects the bounds of an autoscaler that are in force at a moment, and until when. Pure: the moment is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from octavo_operator.api.autoscaling import Autoscaling, Schedule
from octavo_operator.api.fields import seconds

_KNOWN_STARTS = 4096  # some megabytes at most; with more schedules they are computed again
_CENTURY_SECONDS = 100 * 365 * 86_400
"""A longer duration counts as this: a date after the year 9999 cannot be computed."""


@dataclass(frozen=True)
class Bounds:
    """The bounds in force."""

    min_replicas: int
    max_replicas: int
    schedules: tuple[str, ...] = ()
    """The schedules that set them; empty: they are the autoscaling's own."""
    until: datetime | None = None
    """When others may come into force; None: never."""
    ignored: tuple[str, ...] = ()
    """A sentence for each schedule that can never start."""

    @property
    def floor(self) -> int:
        """Return the fewest replicas in force, at least 1: with none, no pod would report waiting requests."""
        return max(1, self.min_replicas)


class ScheduleError(ValueError):
    """A schedule can never start; the message says why."""


@dataclass(frozen=True)
class _Window:
    """The state of a schedule: whether it is in force, and when that changes next."""

    schedule: Schedule
    active: bool
    until: datetime | None


def bounds(autoscaling: Autoscaling, now: datetime) -> Bounds:
    """Return the bounds in force at `now` (with a time zone). Of schedules that overlap, the larger bounds win."""
    windows, ignored = [], []
    for schedule in autoscaling.schedules:
        try:
            windows.append(_window(schedule, now))
        except ScheduleError as error:
            ignored.append(f"schedule {schedule.name} is ignored: {error}")
    active = [window.schedule for window in windows if window.active]
    until = min((window.until for window in windows if window.until), default=None)
    in_force: Sequence[Schedule | Autoscaling] = active or [autoscaling]
    return Bounds(
        min_replicas=max(each.min_replicas for each in in_force),
        max_replicas=max(each.max_replicas for each in in_force),
        schedules=tuple(schedule.name for schedule in active),
        until=until,
        ignored=tuple(ignored),
    )


def _window(schedule: Schedule, now: datetime) -> _Window:
    """Return the schedule's window. Starts are local times of its zone, durations are elapsed time."""
    latest, following = _starts(
        schedule.start, schedule.time_zone, now.astimezone(UTC).replace(second=0, microsecond=0)
    )
    duration = timedelta(seconds=min(seconds(schedule.duration), _CENTURY_SECONDS))
    if latest is not None and (end := latest + duration) > now:
        return _Window(schedule, True, end)
    return _Window(schedule, False, following)


@lru_cache(maxsize=_KNOWN_STARTS)
def _starts(start: str, time_zone: str, minute: datetime) -> tuple[datetime | None, datetime | None]:
    """Return the last start up to a moment, and the first one after it; None: there is none within decades.

    Starts are whole minutes: these are the same in all of a `minute`. A rare one takes milliseconds to find, and a
    reconcile asks several times.
    """
    try:
        local = minute.astimezone(ZoneInfo(time_zone))
    except (KeyError, OSError, ValueError):  # not found; a folder of zones; no name of one
        raise ScheduleError(f"there is no time zone {time_zone!r}") from None
    try:
        latest = next(CronSim(start, local + timedelta(seconds=1), reverse=True), None)
        following = next(CronSim(start, local), None)
    except CronSimError as error:
        raise ScheduleError(f"start {start!r} never comes ({str(error).lower()})") from None
    return (latest.astimezone(UTC) if latest else None), (following.astimezone(UTC) if following else None)
