"""The small parts of core/v1 and autoscaling/v2 that a spec repeats under the same names."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from octavo_operator.api.fields import Dns1123Name, LabelMap, LabelValue, ObjectKey, QualifiedName
from octavo_operator.api.schema import Rule, SpecModel, exactly_one_of, pattern

_VARIABLE = (
    pattern("[A-Za-z_][A-Za-z0-9_]*", "must be the name of a variable: letters, digits and '_'"),
    Rule(
        "!self.startsWith('OCTAVO_')",
        "OCTAVO_ variables are the engine's flags: use the field of the spec, or engine.extraArgs",
        lambda name: not name.startswith("OCTAVO_"),
    ),
)
_FIELD_PATH = (
    r"metadata\.(name|namespace|uid|(labels|annotations)\[\x27[A-Za-z0-9./_-]+\x27\])|spec\.(nodeName|serviceAccountName)"
    r"|status\.(hostIPs?|podIPs?)"
)


class KeySelector(SpecModel):
    """One key of a Secret or ConfigMap."""

    name: Dns1123Name = Field(description="Name of the object.")
    key: ObjectKey = Field(description="Key within it.")
    optional: bool | None = Field(None, description="Whether the pod may start without it.")


class FieldSelector(SpecModel):
    """A field of the pod itself."""

    field_path: Annotated[
        str,
        Field(max_length=253),
        pattern(_FIELD_PATH, "must be a field of the pod such as metadata.name or status.podIP"),
    ] = Field(description="Such as metadata.name or status.podIP.")


class EnvVarSource(SpecModel):
    """The source of a variable's value. Exactly one member is set."""

    rules = (exactly_one_of("secretKeyRef", "configMapKeyRef", "fieldRef"),)
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
        *_VARIABLE,
    ] = Field(description="Name of the variable.")
    value: Annotated[str, Field(max_length=32768)] | None = Field(None, description="Its value.")
    value_from: EnvVarSource | None = Field(None, description="Where its value comes from.")


class LocalReference(SpecModel):
    """An object in the same namespace, by name."""

    name: Dns1123Name = Field(description="Name of the object.")


class EnvFromSource(SpecModel):
    """All keys of a Secret or a ConfigMap as variables. Exactly one member is set."""

    rules = (exactly_one_of("secretRef", "configMapRef"),)
    prefix: Annotated[str, Field(min_length=1, max_length=63), *_VARIABLE] | None = Field(
        None, description="Prefix of the variables' names."
    )
    secret_ref: LocalReference | None = Field(None, description="A Secret.")
    config_map_ref: LocalReference | None = Field(None, description="A ConfigMap.")


class Toleration(SpecModel):
    """A taint that the pods tolerate."""

    rules = (
        Rule(
            "self.operator == 'Equal' || !has(self.value) || self.value == ''",
            "a toleration with operator Exists has no value",
            lambda toleration: toleration.operator == "Equal" or not toleration.value,
        ),
        Rule(
            "self.operator == 'Exists' || has(self.key)",
            "a toleration with operator Equal, the default, needs a key; Exists without one tolerates every taint",
            lambda toleration: toleration.operator == "Exists" or toleration.key is not None,
        ),
        Rule(
            "!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",
            "tolerationSeconds goes with effect NoExecute only",
            lambda toleration: toleration.toleration_seconds is None or toleration.effect == "NoExecute",
        ),
    )
    key: QualifiedName | None = Field(None, description="Key of the taint. Default: all keys.")
    operator: Literal["Exists", "Equal"] = Field("Equal", description="How key and value are compared.")
    value: LabelValue | None = Field(None, description="Value of the taint.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        None, description="Effect of the taint. Default: all effects."
    )
    toleration_seconds: Annotated[int, Field(ge=0, le=31_536_000)] | None = Field(
        None, description="How long NoExecute is tolerated, in seconds."
    )


class LabelSelectorRequirement(SpecModel):
    """One condition on a label."""

    rules = (
        Rule(
            "(self.operator in ['In', 'NotIn']) == (has(self.values) && self.values.size() > 0)",
            "operators In and NotIn need values, Exists and DoesNotExist have none",
            lambda condition: (condition.operator in ("In", "NotIn")) == bool(condition.values),
        ),
    )
    key: QualifiedName = Field(description="Key of the label.")
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"] = Field(description="How it is compared.")
    values: Annotated[list[LabelValue], Field(max_length=16)] | None = Field(
        None, description="Values for In and NotIn.", json_schema_extra={"x-kubernetes-list-type": "atomic"}
    )


class LabelSelector(SpecModel):
    """Objects by their labels: all conditions must be met, and an empty selector selects all objects."""

    match_labels: LabelMap | None = Field(None, description="Labels that all must match.")
    match_expressions: Annotated[list[LabelSelectorRequirement], Field(max_length=16)] | None = Field(
        None, description="Conditions that all must be met.", json_schema_extra={"x-kubernetes-list-type": "atomic"}
    )


class TopologySpreadConstraint(SpecModel):
    """A rule that spreads pods over nodes, zones and the like."""

    rules = (
        Rule(
            "!has(self.minDomains) || self.whenUnsatisfiable == 'DoNotSchedule'",
            "minDomains goes with whenUnsatisfiable DoNotSchedule only",
            lambda constraint: constraint.min_domains is None or constraint.when_unsatisfiable == "DoNotSchedule",
        ),
    )
    max_skew: Annotated[int, Field(ge=1, le=1000)] = Field(1, description="Largest difference between two domains.")
    topology_key: QualifiedName = Field(description="Label of the nodes.")
    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"] = Field(
        "ScheduleAnyway", description="What to do if it cannot be met."
    )
    label_selector: LabelSelector | None = Field(None, description="Pods to spread. Default: those of this service.")
    min_domains: Annotated[int, Field(ge=1, le=1000)] | None = Field(None, description="Smallest number of domains.")


class ScalingPolicy(SpecModel):
    """The largest change in a period."""

    type: Literal["Pods", "Percent"] = Field(description="What value counts.")
    value: Annotated[int, Field(ge=1, le=10_000)] = Field(description="Pods, or percent of the replicas.")
    period_seconds: Annotated[int, Field(ge=1, le=1800)] = Field(description="Length of the period.")


class ScalingRules(SpecModel):
    """The speed of scaling in one direction."""

    stabilization_window_seconds: Annotated[int, Field(ge=0, le=3600)] | None = Field(
        None, description="How long a change must have been needed before it is made."
    )
    select_policy: Literal["Max", "Min", "Disabled"] | None = Field(
        None, description="Max or Min: the policy that allows the largest or smallest change; Disabled: no scaling."
    )
    policies: Annotated[list[ScalingPolicy], Field(min_length=1, max_length=8)] | None = Field(
        None, description="The policies."
    )


class ScalingBehavior(SpecModel):
    """The behavior of the HorizontalPodAutoscaler, as in autoscaling/v2."""

    scale_up: ScalingRules | None = Field(None, description="How fast to grow.")
    scale_down: ScalingRules | None = Field(None, description="How fast to shrink.")
