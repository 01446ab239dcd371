"""Observation: one LLMService with its children and pods, as the watches last reported them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from octavo_operator.api.names import (
    FIELD_MANAGER,
    KIND,
    MANAGED_BY_LABEL,
    SERVICE_LABEL,
    cache_claim,
    is_engine_pod,
    metrics_service_name,
    other_controller,
)
from octavo_operator.api.status import DisruptionsStatus
from octavo_operator.reconcile.fields.ownership import APPLIED, has_same_owner, owned_fields
from octavo_operator.reconcile.kinds import CHILDREN, ENDPOINT_SLICE, LLMSERVICE, OPTIONAL, POD, Kind
from octavo_operator.reconcile.pods.adapter_report import AdapterReport
from octavo_operator.reconcile.pods.failed_pods import without_most_failed
from octavo_operator.reconcile.pods.load_report import LoadReport
from octavo_operator.reconcile.problem import Problem

Object = Mapping[str, Any]
Key = tuple[str, str]
"""Namespace and name of an LLMService."""

Index = Mapping[Key, Iterable[Object]]
_NOTHING: Mapping[Kind, str] = {}


@dataclass(frozen=True)
class Observation:
    """One LLMService and what belongs to its name."""

    service: Object | None
    """None: it is deleted."""
    children: Mapping[tuple[str, str], Object] = field(default_factory=dict)
    """By kind and name."""
    pods: tuple[Object, ...] = ()
    """The youngest first, so that all conditions, and the next leader, name the same one of several."""
    reports: Mapping[str, LoadReport] = field(default_factory=dict)
    """By the pod's uid, as the next two."""
    adapter_reports: Mapping[str, AdapterReport] = field(default_factory=dict)
    unanswered: Mapping[str, str] = field(default_factory=dict)
    """Why the operator cannot reach a pod that serves, as a sentence."""
    unknown: tuple[str, ...] = ()
    """The paths of its fields that this version does not know."""
    slices: tuple[Object, ...] | None = None
    """The addresses to which its Service sends requests, as `trimmed` EndpointSlices; None: not watched."""
    unwatched: Mapping[Kind, str] = field(default_factory=dict)
    """The kinds that may not be read, each with a sentence."""
    foreign_problems: Sequence[Problem] = ()
    """The problems with objects that act for it without being part of it (`foreign_objects`)."""
    disruptions: DisruptionsStatus | None = None
    """What others have done to pods, until there are new ones in their place; None: nothing."""
    template_changes_since: str = ""
    """Since when others change its Deployment's pod template again and again (RFC 3339); empty: they do not."""
    unobserved_since: str = ""
    """Since when no controller acts on its Deployment (RFC 3339); empty: one does."""
    unaddressed_since: str = ""
    """Since when its Service has lacked the address of a load balancer (RFC 3339); empty: it lacks none."""
    observed_template: str = ""
    """The digest of the Deployment's pod template on which its controller has acted; empty: it is not known."""


def observe(key: Key, indexes: Mapping[str, Index], unwatched: Mapping[Kind, str] = _NOTHING) -> Observation:
    """Return the observation of `key` from the indexes, which are called by their kinds' plurals.

    Pods that another workload made with the labels of this one are left out: `foreign_objects` reports them. So are
    harmless copies of children, which would be deleted as no longer needed.
    """
    service = next(iter(indexes[LLMSERVICE.plural].get(key, ())), None)
    children = {
        (kind.name, child["metadata"]["name"]): child
        for kind in (*CHILDREN, *OPTIONAL)
        for child in indexes.get(kind.plural, {}).get(key, ())
        if kind.name not in _HARMLESS_COPIES or not _is_copy(kind, child, key[1])
    }
    slices = indexes.get(ENDPOINT_SLICE.plural)
    own = [pod for pod in indexes.get(POD.plural, {}).get(key, ()) if not other_controller(pod["metadata"])]
    by_name = sorted(own, key=lambda pod: str(pod["metadata"]["name"]))
    pods = sorted(by_name, key=lambda pod: pod["metadata"].get("creationTimestamp") or "", reverse=True)
    return Observation(
        service,
        children,
        without_most_failed(pods),
        slices=None if slices is None or ENDPOINT_SLICE in unwatched else tuple(slices.get(key, ())),
        unwatched=unwatched,
    )


def child_names(kind: Kind, service: str) -> tuple[str, ...]:
    """Return the names of an LLMService's children of this kind."""
    if kind.name == "PersistentVolumeClaim":
        return (cache_claim(service),)
    return (service, metrics_service_name(service)) if kind.name == "Service" else (service,)


_HARMLESS_COPIES = ("Deployment", "Service", "PersistentVolumeClaim", "NetworkPolicy")
"""The kinds of which an LLMService may have two. Two PodDisruptionBudgets keep its pods from being evicted, two
autoscalers both set its replicas, two monitors scrape each pod twice, and two PrometheusRules alert twice."""


def _is_copy(kind: Kind, child: Object, service: str) -> bool:
    """Return True if another client has made a trimmed child from one of the operator's, under a name of its own.

    As by `kubectl get service model --output yaml`, edited and applied: labels and owner are copied. The operator has
    applied no field of it, and no other controller has made it.
    """
    metadata = child["metadata"]
    if child.get("owned") or metadata["name"] in child_names(kind, service):
        return False
    return all(each["kind"] == KIND for each in metadata.get("ownerReferences") or () if each.get("controller"))


SLICE_OF = "kubernetes.io/service-name"
"""The label by which an EndpointSlice names its Service."""


def key_of(kind: Kind, body: Object) -> Key | None:
    """Return the LLMService that `body` is or belongs to, by its owner or its labels; None: to none, as another's pod.

    The owner counts first: a user may have changed the label of a child.
    """
    metadata = body["metadata"]
    labels = metadata.get("labels") or {}
    if kind is POD and not is_engine_pod(labels):
        return None
    if kind is ENDPOINT_SLICE and labels.get(SLICE_OF) != labels.get(SERVICE_LABEL):
        return None  # of the metrics Service, which also leads to pods that are not ready
    name = metadata["name"] if kind is LLMSERVICE else _owner(metadata) or labels.get(SERVICE_LABEL)
    return (metadata["namespace"], name) if name else None


def _owner(metadata: Mapping[str, Any]) -> str | None:
    """Return the name of the LLMService that controls an object."""
    owners = (each for each in metadata.get("ownerReferences") or () if each.get("controller"))
    return next((each["name"] for each in owners if each["kind"] == KIND), None)


FOREGROUND = "foregroundDeletion"
"""The finalizer by which the garbage collector keeps an object until what belongs to it is gone."""


def is_terminating(child: Object) -> bool:
    """Return True if the child is being deleted; a finalizer may hold it for long."""
    return "deletionTimestamp" in child["metadata"]


def belongs_to(child: Object, service_name: str, uid: str) -> bool:
    """Return True if a live object of a child's name is this LLMService's: owned by it, or orphaned with its labels."""
    metadata = child["metadata"]
    controllers = [owner["uid"] for owner in metadata.get("ownerReferences") or () if owner.get("controller")]
    if controllers:
        return controllers == [uid]
    labels = metadata.get("labels") or {}
    return labels.get(SERVICE_LABEL) == service_name and labels.get(MANAGED_BY_LABEL) == FIELD_MANAGER


def is_stripped(live: Object, digest: str, uid: str) -> bool:
    """Return True if another client has removed owner and labels of a live object that this LLMService has applied.

    `uid`: of the object that was applied last; empty: that is not known, as after a restart. Then `digest`, of the
    manifest of this LLMService, tells it, even if the manifest has changed meanwhile: it begins with the owner's, which
    differs for another LLMService, and for an earlier one of the same name.
    """
    metadata = live["metadata"]
    bare = not metadata.get("ownerReferences") and SERVICE_LABEL not in (metadata.get("labels") or {})
    applied = (metadata.get("annotations") or {}).get(APPLIED) or ""
    return bare and (metadata["uid"] == uid or (has_same_owner(applied, digest) and bool(owned_fields(live))))
