"""The fields of an LLMService's status."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic.alias_generators import to_camel

from octavo_operator.api.conditions import AdapterState, ConditionType, LoadingPhase, Reason
from octavo_operator.api.schema import ListType

# Closed sets here, but plain strings in the CRD: a newer operator must be able to report to an older CRD.
OpenString = WithJsonSchema({"type": "string", "maxLength": 64})


LONGEST_SENTENCE = 4096
"""Characters of a sentence in a status; what the API server says of a refusal can be ten times as long."""


def shortened(sentence: str) -> str:
    """Return `sentence`, cut where it is longer than a status should hold.

    The CRD refuses what is longer than 32 KiB.
    """
    return sentence if len(sentence) <= LONGEST_SENTENCE else sentence[: LONGEST_SENTENCE - 1] + "…"


Sentence = Annotated[str, BeforeValidator(shortened)]


class StatusModel(BaseModel):
    """Base of the status: camelCase outside, written only by the operator."""

    model_config = ConfigDict(alias_generator=to_camel, validate_by_name=True, frozen=True)

    def as_object(self) -> dict[str, Any]:
        """Return the object for the API, without fields that are not reported."""
        return self.model_dump(by_alias=True, mode="json", exclude_none=True)


class Condition(StatusModel):
    """One observation, in the shape that all of Kubernetes uses."""

    type: Annotated[ConditionType, OpenString] = Field(description="What is observed.")
    status: Literal["True", "False", "Unknown"] = Field(description="Whether it holds.")
    reason: Annotated[Reason, OpenString] = Field(description="Why, in one word.")
    message: Sentence = Field(description="Why, in a sentence.", max_length=32768)
    observed_generation: int = Field(description="Generation of the spec that was observed.")
    last_transition_time: str = Field(
        description="When status last changed.", json_schema_extra={"format": "date-time"}
    )


class MemoryStatus(StatusModel):
    """The memory that the model takes, as one of its pods has reported."""

    subject: str = Field(description="Model, dtype and device that the numbers apply to.")
    weight_bytes: int = Field(description="Bytes of the weights, on one device.")
    step_bytes: int = Field(description="Bytes that one step takes at most.")
    kv_bytes_per_token: int = Field(description="Bytes that one token of context takes.")
    total_bytes: int = Field(description="Bytes of the device, or of the container's memory on CPU.")


class ModelStatus(StatusModel):
    """The model as it is served."""

    name: str = Field(description="Name in the OpenAI API.")
    resolved_revision: str | None = Field(default=None, description="Commit that the revision resolved to.")
    size_bytes: int | None = Field(default=None, description="Size of the weights.")
    memory: MemoryStatus | None = Field(default=None, description="Memory that the model takes.")


class LoadingStatus(StatusModel):
    """The progress of the replica that has progressed furthest."""

    phase: Annotated[LoadingPhase, OpenString] = Field(
        description="Pending, Failed, Pulling, Downloading, Loading, Warmup, NotReady, Serving or Suspended."
    )
    message: Sentence = Field(description="What the replica waits for; empty: nothing.")
    bytes_loaded: int | None = Field(default=None, description="Bytes of the weights that are loaded.")
    bytes_total: int | None = Field(default=None, description="Bytes of the weights.")
    last_load_seconds: int | None = Field(default=None, description="How long the last load took.")


class RevisionStatus(StatusModel):
    """The revisions of the pods."""

    current: str | None = Field(default=None, description="Revision that serves.")
    updated: str | None = Field(default=None, description="Revision that is rolled out.")
    collision_count: int | None = Field(default=None, description="Collisions of revision names so far.")


class AutoscalingStatus(StatusModel):
    """The autoscaler's current metric and desired replicas."""

    desired_replicas: int | None = Field(default=None, description="Replicas that it wants.")
    queue_depth: str | None = Field(default=None, description="Waiting requests per replica, as a quantity.")
    concurrency_percent: int | None = Field(default=None, description="Share of engine.maxConcurrentRequests in use.")
    last_scale_time: str | None = Field(
        default=None, description="When it last changed the number.", json_schema_extra={"format": "date-time"}
    )
    message: Sentence | None = Field(default=None, description="Why the service is or is not scaling, in a sentence.")


class AdapterReplicaStatus(StatusModel):
    """The state of an adapter in one replica."""

    pod: str = Field(description="Name of the pod.")
    state: Annotated[AdapterState, OpenString] = Field(
        description="Pending (the pod has not read the list yet), Fetching, Loading, Loaded or Failed."
    )
    message: Sentence | None = Field(
        default=None, description="Why it is not loaded, or the engine's warning about it, in a sentence."
    )


class AdapterStatus(StatusModel):
    """The state of an adapter."""

    name: str = Field(description="Name in the OpenAI API.")
    loaded_replicas: int = Field(description="Pods that serve it.")
    replicas: Annotated[list[AdapterReplicaStatus], ListType("pod")] = Field(
        description="A row for each pod. If there are very many, those that have loaded it are omitted."
    )


class EndedPodStatus(StatusModel):
    """A pod that something other than its Deployment or its node has ended."""

    uid: str = Field(description="Uid of the pod.")
    name: str = Field(description="Name of the pod.")
    node: str | None = Field(default=None, description="Node on which it ran.")
    cause: str = Field(description="Reason of its condition DisruptionTarget, such as PreemptionByScheduler.")
    time: str | None = Field(
        default=None, description="When that condition was set.", json_schema_extra={"format": "date-time"}
    )
    preemptor: str | None = Field(
        default=None,
        description="Pod for which it was preempted: its namespace, a slash and its name; its uid if only that is "
        "known.",
    )


class DisruptionsStatus(StatusModel):
    """What others have done to pods before all replicas were available. Pods that are gone do not tell."""

    ended_pods: Annotated[list[EndedPodStatus], ListType("uid")] | None = Field(
        default=None, description="Pods that were preempted or evicted, as many as the condition Degraded speaks of."
    )
    pods_deleted_since: str | None = Field(
        default=None,
        description="Since when pods have been deleted, or have lost their labels, again and again.",
        json_schema_extra={"format": "date-time"},
    )


class LLMServiceStatus(StatusModel):
    """The observed state (status). Fields may be missing until the behaviour that they report is used."""

    observed_generation: int = Field(description="Generation of the spec that this status describes.")
    conditions: Annotated[list[Condition], ListType("type")] = Field(
        description="The conditions. All eleven types are always present."
    )
    replicas: int = Field(description="Number of pods of all revisions, also for the scale subresource.")
    desired_replicas: int = Field(description="Number of pods that should run.")
    ready_replicas: int = Field(description="Pods that answer requests.")
    available_replicas: int = Field(description="Pods that have been ready long enough to be available.")
    updated_replicas: int = Field(description="Pods of the newest revision.")
    selector: str = Field(description="Label selector of the pods, for the scale subresource.")
    url: str = Field(description="Base URL of the OpenAI API within the cluster.")
    engine_image: str = Field(
        description="Engine image if spec.engine.image names none: the operator's at the first reconcile, which "
        "upgrades of the operator keep."
    )
    model: ModelStatus = Field(description="The model as it is served.")
    loading: LoadingStatus = Field(description="Progress of the pod that has progressed furthest.")
    revision: RevisionStatus | None = Field(default=None, description="Revisions of the pods.")
    autoscaling: AutoscalingStatus | None = Field(
        default=None, description="Measured load, and the number of replicas that the autoscaler wants."
    )
    adapters: Annotated[list[AdapterStatus], ListType("name")] | None = Field(
        default=None, description="State of each adapter."
    )
    disruptions: DisruptionsStatus | None = Field(
        default=None,
        description="What others have done to pods, until all replicas are available. An operator that has just "
        "started goes on from there.",
    )
