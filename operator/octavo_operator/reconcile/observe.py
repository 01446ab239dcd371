"""What is there: one LLMService with its children and pods, as the watches last told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from octavo_operator.api.names import FIELD_MANAGER, MANAGED_BY_LABEL, SERVICE_LABEL
from octavo_operator.reconcile.kinds import CHILDREN, LLMSERVICE, POD, Kind

Object = Mapping[str, Any]
Key = tuple[str, str]
"""Namespace and name of an LLMService."""

Index = Mapping[Key, Iterable[Object]]


@dataclass(frozen=True)
class Observation:
    """One LLMService (None: gone) and what belongs to its name. `children` by kind and name."""

    service: Object | None
    children: Mapping[tuple[str, str], Object] = field(default_factory=dict)
    pods: tuple[Object, ...] = ()


def observe(key: Key, indexes: Mapping[str, Index]) -> Observation:
    """The observation of `key` from the indexes, which are called by their kinds' plurals."""
    service = next(iter(indexes[LLMSERVICE.plural].get(key, ())), None)
    children = {
        (kind.name, child["metadata"]["name"]): child
        for kind in CHILDREN
        for child in indexes[kind.plural].get(key, ())
    }
    return Observation(service, children, tuple(indexes[POD.plural].get(key, ())))


def key_of(kind: Kind, body: Object) -> Key | None:
    """The LLMService that `body` is or belongs to, by its label."""
    metadata = body["metadata"]
    name = metadata["name"] if kind is LLMSERVICE else (metadata.get("labels") or {}).get(SERVICE_LABEL)
    return (metadata["namespace"], name) if name else None


def trimmed(kind: Kind, body: Object) -> Object:
    """What of `body` is worth keeping in memory: an LLMService whole, of the rest metadata, status, a pod's volumes."""
    metadata = {name: value for name, value in body["metadata"].items() if name != "managedFields"}
    if kind is LLMSERVICE:
        return {**body, "metadata": metadata}
    kept: dict[str, Any] = {"kind": kind.name, "metadata": metadata, "status": body.get("status") or {}}
    if kind is POD:
        kept["spec"] = {"volumes": (body.get("spec") or {}).get("volumes") or []}
    return kept


def belongs_to(child: Object, service_name: str, uid: str) -> bool:
    """Whether a live object is this LLMService's: owned by it, or orphaned by one of the same name."""
    metadata = child["metadata"]
    controllers = [owner["uid"] for owner in metadata.get("ownerReferences") or () if owner.get("controller")]
    if controllers:
        return controllers == [uid]
    labels = metadata.get("labels") or {}
    return labels.get(MANAGED_BY_LABEL) == FIELD_MANAGER and labels.get(SERVICE_LABEL) == service_name
