"""The small parts of core/v1 and autoscaling/v2 that a spec repeats under the same names."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from octavo_operator.api.fields import Dns1123Name, LabelMap, ObjectKey
from octavo_operator.api.schema import Rule, SpecModel, pattern


class KeySelector(SpecModel):
    """One key of a Secret or ConfigMap."""

    name: Dns1123Name = Field(description="Name of the object.")
    key: ObjectKey = Field(description="Key within it.")
    optional: bool | None = Field(None, description="Whether the pod may start without it.")


class FieldSelector(SpecModel):
    """A field of the pod itself."""

    field_path: Annotated[str, Field(max_length=253)] = Field(description="Such as metadata.name or status.podIP.")


class EnvVarSource(SpecModel):
    """Where the value of a variable comes from. Exactly one member is set."""

    rules = (
        Rule(
            "[has(self.secretKeyRef), has(self.configMapKeyRef), has(self.fieldRef)].filter(x, x).size() == 1",
            "exactly one of secretKeyRef, configMapKeyRef or fieldRef must be set",
            lambda source: len(source.model_dump(exclude_none=True)) == 1,
        ),
    )
    secret_key_ref: KeySelector | None = Field(None, description="A key of a Secret.")
    config_map_key_ref: KeySelector | None = Field(None, description="A key of a ConfigMap.")
    field_ref: FieldSelector | None = Field(None, description="A field of the pod.")


class EnvVar(SpecModel):
    """A variable of the engine's environment."""

    rules = (
        Rule(
            "!(has(self.value) && has(self.valueFrom))",
            "set value or valueFrom, not both",
            lambda env: env.value is None or env.value_from is None,
        ),
    )
    name: Annotated[
        str,
        Field(min_length=1, max_length=253),
        pattern("[A-Za-z_][A-Za-z0-9_]*", "must be the name of a variable: letters, digits and '_'"),
        Rule(
            "!self.startsWith('OCTAVO_')",
            "OCTAVO_ variables are the engine's flags: use the field of the spec, or engine.extraArgs",
            lambda name: not name.startswith("OCTAVO_"),
        ),
    ] = Field(description="Name of the variable.")
    value: Annotated[str, Field(max_length=32768)] | None = Field(None, description="Its value.")
    value_from: EnvVarSource | None = Field(None, description="Where its value comes from.")


class LocalReference(SpecModel):
    """An object in the same namespace, by name."""

    name: Dns1123Name = Field(description="Name of the object.")


class EnvFromSource(SpecModel):
    """All keys of a Secret or a ConfigMap as variables. Exactly one member is set."""

    rules = (
        Rule(
            "has(self.secretRef) != has(self.configMapRef)",
            "exactly one of secretRef or configMapRef must be set",
            lambda source: (source.secret_ref is None) != (source.config_map_ref is None),
        ),
    )
    prefix: Annotated[str, Field(max_length=63)] | None = Field(None, description="Put before each name.")
    secret_ref: LocalReference | None = Field(None, description="A Secret.")
    config_map_ref: LocalReference | None = Field(None, description="A ConfigMap.")


class Toleration(SpecModel):
    """A taint that the pods tolerate."""

    key: Annotated[str, Field(max_length=316)] | None = Field(None, description="Key of the taint; none: all.")
    operator: Literal["Exists", "Equal"] = Field("Equal", description="How key and value are compared.")
    value: Annotated[str, Field(max_length=63)] | None = Field(None, description="Value of the taint.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(None, description="none: all.")
    toleration_seconds: Annotated[int, Field(ge=0, le=31_536_000)] | None = Field(
        None, description="How long NoExecute is tolerated, in seconds."
    )


class LabelSelector(SpecModel):
    """Pods by their labels."""

    match_labels: LabelMap | None = Field(None, description="Labels that all must match.")


class TopologySpreadConstraint(SpecModel):
    """How pods are spread over nodes, zones and the like."""

    max_skew: Annotated[int, Field(ge=1, le=1000)] = Field(1, description="Largest difference between two domains.")
    topology_key: Annotated[str, Field(min_length=1, max_length=316)] = Field(description="Label of the nodes.")
    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"] = Field(
        "ScheduleAnyway", description="What to do when it cannot be met."
    )
    label_selector: LabelSelector | None = Field(None, description="Which pods count. Default: those of this service.")
    min_domains: Annotated[int, Field(ge=1, le=1000)] | None = Field(None, description="Fewest domains.")


class ScalingPolicy(SpecModel):
    """How much may change in a period."""

    type: Literal["Pods", "Percent"] = Field(description="What value counts.")
    value: Annotated[int, Field(ge=1, le=10_000)] = Field(description="Pods, or percent of the replicas.")
    period_seconds: Annotated[int, Field(ge=1, le=1800)] = Field(description="Length of the period.")


class ScalingRules(SpecModel):
    """How fast to scale in one direction."""

    stabilization_window_seconds: Annotated[int, Field(ge=0, le=3600)] | None = Field(
        None, description="How long to look back before acting."
    )
    select_policy: Literal["Max", "Min", "Disabled"] | None = Field(None, description="Which policy wins.")
    policies: Annotated[list[ScalingPolicy], Field(max_length=8)] | None = Field(None, description="The policies.")


class ScalingBehavior(SpecModel):
    """The behavior of the HorizontalPodAutoscaler, as in autoscaling/v2."""

    scale_up: ScalingRules | None = Field(None, description="How fast to grow.")
    scale_down: ScalingRules | None = Field(None, description="How fast to shrink.")
