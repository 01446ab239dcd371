"""The part of each object that the operator keeps in memory: only the fields that are read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from octavo_operator.api.names import ADAPTERS_ANNOTATION, DELETION_COST_ANNOTATION
from octavo_operator.reconcile.fields.added_fields import is_shared
from octavo_operator.reconcile.fields.ownership import APPLIED, owned_fields
from octavo_operator.reconcile.kinds import ENDPOINT_SLICE, LLMSERVICE, OBSERVED, POD, Kind
from octavo_operator.reconcile.observation.observe import Object
from octavo_operator.reconcile.pods.endpoints import summary_of_slice
from octavo_operator.reconcile.pods.placement import kept_spec
from octavo_operator.render.adapters import digest_of_list
from octavo_operator.render.container import CONTAINER

_KEPT_METADATA = (
    "name",
    "namespace",
    "uid",
    "generation",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
    "finalizers",
    "labels",
    "ownerReferences",
)
_KEPT_SPEC = {
    "Deployment": ("replicas", "strategy", "paused"),
    "Service": ("ports", "clusterIP", "selector"),
    "PersistentVolumeClaim": ("resources",),
    POD.name: ("volumes",),
}
"""The fields of a spec that are kept; of pods also those that decide their placement."""
_CONTROLLERS_NOTES = "deployment.kubernetes.io/"  # annotations by which the Deployment's controller counts revisions


def trimmed(kind: Kind, body: Object) -> Object:
    """Return the part of `body` to keep: of an LLMService nearly all, of other objects only the fields that are read.

    Of a child also its `fingerprint`, which changes with everything but its status.
    """
    metadata = {name: body["metadata"][name] for name in _KEPT_METADATA if name in body["metadata"]}
    if kind is LLMSERVICE:
        return {**body, "metadata": metadata, "status": readable_status(body.get("status"))}
    if kind is ENDPOINT_SLICE:
        return {"metadata": metadata, **summary_of_slice(body)}
    kept: dict[str, Any] = {"kind": kind.name, "metadata": metadata, "status": body.get("status") or {}}
    if names := _KEPT_SPEC.get(kind.name):
        spec = body.get("spec") or {}
        if kind.name == "Deployment":
            kept["engineImage"] = engine_image(spec)
            kept["nodeSelector"] = node_selector(spec)
            kept["template"] = _digest(spec.get("template"))
            kept["gated"] = _gated_fields((spec.get("template") or {}).get("spec") or {})
        kept["spec"] = {name: spec[name] for name in names if name in spec}
        if kind is POD:
            kept["spec"] |= kept_spec(spec)
            kept["statusChanged"] = status_changed_at(body["metadata"])
            annotations = body["metadata"].get("annotations") or {}
            kept["adapters"] = digest_of_list(annotations.get(ADAPTERS_ANNOTATION, ""))
            kept["deletionCost"] = annotations.get(DELETION_COST_ANNOTATION, "")
    if kind not in OBSERVED:
        kept["fingerprint"] = fingerprint(body)
        kept["applied"] = (body["metadata"].get("annotations") or {}).get(APPLIED)
        kept["owned"] = owned_fields(body)
        kept["shared"] = is_shared(kind.name, body)
    return kept


_READ_OF_CONDITIONS = ("type", "status", "reason", "lastTransitionTime")


def readable_status(status: Any) -> dict[str, Any]:
    """Return an LLMService's status without malformed conditions, which another CRD may have allowed."""
    if not isinstance(status, Mapping):
        return {}
    conditions = status.get("conditions")
    kept = [each for each in conditions if _is_condition(each)] if isinstance(conditions, list) else []
    return {**status, "conditions": kept} if "conditions" in status else dict(status)


def _is_condition(found: Any) -> bool:
    if not isinstance(found, Mapping) or not all(isinstance(found.get(name), str) for name in _READ_OF_CONDITIONS):
        return False
    try:
        return datetime.fromisoformat(found["lastTransitionTime"]).tzinfo is not None
    except ValueError:
        return False


def status_changed_at(metadata: Mapping[str, Any]) -> str:
    """Return when the status was last written with other values (RFC 3339); empty: that is not known."""
    entries = (each for each in metadata.get("managedFields") or () if each.get("subresource") == "status")
    return max((str(each.get("time") or "") for each in entries), default="")


def _gated_fields(pod: Mapping[str, Any]) -> dict[str, bool]:
    """Return whether the pod has claims and image volumes, which are removed where their feature gate is off."""
    images = any("image" in volume for volume in pod.get("volumes") or ())
    return {"claims": bool(pod.get("resourceClaims")), "images": images}


def engine_image(spec: Mapping[str, Any]) -> str:
    """Return the image of the engine in the spec of a Deployment; empty: it has none."""
    containers = ((spec.get("template") or {}).get("spec") or {}).get("containers") or ()
    return next((str(each.get("image") or "") for each in containers if each["name"] == CONTAINER), "")


def node_selector(spec: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the labels that a node must have for the pods of a Deployment with this spec."""
    return ((spec.get("template") or {}).get("spec") or {}).get("nodeSelector") or {}


def fingerprint(body: Object) -> str:
    """Return a fingerprint of a child, which changes with everything but its status.

    Kinds that count no generation are compared by all that they hold.
    """
    metadata = body["metadata"]
    notes = {
        name: text
        for name, text in (metadata.get("annotations") or {}).items()
        if not name.startswith(_CONTROLLERS_NOTES)
    }
    content: Any = metadata.get("generation")
    if content is None:
        content = {name: value for name, value in body.items() if name not in ("metadata", "status")}
    compared = [metadata["uid"], metadata.get("labels"), metadata.get("ownerReferences"), notes, content]
    return _digest(compared)


def _digest(content: Any) -> str:
    return hashlib.sha1(json.dumps(content, sort_keys=True).encode(), usedforsecurity=False).hexdigest()
