"""The autoscaling part of the spec: how the number of replicas follows the load."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from octavo_operator.api.corev1 import ScalingBehavior
from octavo_operator.api.fields import Duration, ShortName
from octavo_operator.api.schema import ListType, Rule, SpecModel, pattern

_MIN_WITHIN_MAX = Rule(
    "self.minReplicas <= self.maxReplicas",
    "minReplicas must not be larger than maxReplicas",
    lambda bounds: bounds.min_replicas <= bounds.max_replicas,
    shown=("minReplicas", "maxReplicas"),
)


def _cron_field(value: str) -> str:
    item = rf"(\*|({value})(-({value}))?)(/[1-9][0-9]?)?"
    return f"{item}(,{item})*"


_CRON = "(?i:" + " ".join(
    _cron_field(value)
    for value in (
        "[0-5]?[0-9]",
        "[01]?[0-9]|2[0-3]",
        "0?[1-9]|[12][0-9]|3[01]",
        "0?[1-9]|1[0-2]|jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec",
        "[0-7]|sun|mon|tue|wed|thu|fri|sat",
    )
) + ")"  # fmt: skip


class Schedule(SpecModel):
    """Other bounds for a time of the day or the week."""

    rules = (_MIN_WITHIN_MAX,)
    name: ShortName = Field(description="Name of the schedule.")
    time_zone: Annotated[
        str, Field(max_length=64), pattern("[A-Za-z][A-Za-z0-9_+/-]*", "must be a time zone such as Europe/Berlin")
    ] = Field("UTC", description="Time zone of start.")
    start: Annotated[
        str,
        Field(max_length=64),
        pattern(
            _CRON,
            "must be a cron expression of five fields, as in 0 8 * * 1-5: minute 0-59, hour 0-23, day 1-31, month 1-12,"
            " day of the week 0-7",
        ),
    ] = Field(description="When it starts, as a cron expression.")
    duration: Duration = Field(description="How long it lasts, such as 10h.")
    min_replicas: Annotated[int, Field(ge=0, le=1000)] = Field(
        description="Smallest number of replicas while it is active."
    )
    max_replicas: Annotated[int, Field(ge=1, le=1000)] = Field(
        description="Largest number of replicas while it is active."
    )


class Autoscaling(SpecModel):
    """Bounds and targets by which the number of replicas follows the load. Exclusive with replicas."""

    rules = (_MIN_WITHIN_MAX,)
    min_replicas: Annotated[int, Field(ge=0, le=1000)] = Field(1, description="Smallest number of replicas.")
    max_replicas: Annotated[int, Field(ge=1, le=1000)] = Field(description="Largest number of replicas.")
    target_queue_depth: Annotated[int, Field(ge=1, le=10_000)] = Field(
        4, description="Target of waiting requests per replica."
    )
    target_concurrency_percent: Annotated[int, Field(ge=1, le=100)] = Field(
        80,
        description="Target of running and waiting requests per replica, in percent of engine.maxConcurrentRequests.",
    )
    metrics_source: Literal["Auto", "Builtin", "Prometheus", "KEDA"] = Field(
        "Auto",
        description="Where the autoscaler gets its metrics: Builtin is Octavo's own metrics API, Prometheus an adapter,"
        " KEDA its ScaledObject; Auto: KEDA if it serves the cluster's external metrics, else Builtin.",
    )
    behavior: ScalingBehavior | None = Field(None, description="How fast to scale, as in autoscaling/v2.")
    schedules: Annotated[list[Schedule], Field(max_length=16), ListType("name")] = Field(
        default_factory=list, description="Other bounds at given times."
    )
