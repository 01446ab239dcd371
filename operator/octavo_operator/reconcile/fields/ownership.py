"""Decides whether a child is as it was last applied, so that a new leader does not write it again. Pure.

An annotation holds a digest of the manifest that was applied last, and of its owner. If another manager has changed or
removed a field of that manifest since, the managed fields no longer count the field as ours.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from typing import Any

from octavo_operator.api.names import FIELD_MANAGER, GROUP

APPLIED = f"{GROUP}/applied"
"""The annotation with the digest."""
_HALF = 16

Object = Mapping[str, Any]


def digest_of(manifest: Object) -> str:
    """Return a hash of the manifest in hex, whose first half is one of its owner alone."""
    return _hash(manifest["metadata"].get("ownerReferences")) + _hash(manifest)


def has_same_owner(applied: str, digest: str) -> bool:
    """Return True if two digests are of manifests of one LLMService, known by its uid; they may differ otherwise."""
    return applied[:_HALF] == digest[:_HALF]


def _hash(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:_HALF]


def marked(manifest: Object, digest: str) -> dict[str, Any]:
    """Return `manifest` with the annotation of its digest."""
    metadata = manifest["metadata"]
    annotations = {**(metadata.get("annotations") or {}), APPLIED: digest}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}


def owned_fields(live: Object) -> str:
    """Return the fields of a live object that our server-side apply owns, as JSON.

    One string for all objects with the same fields; so their owners, which differ, are counted as one value.
    """
    for entry in live["metadata"].get("managedFields") or ():
        named = (entry.get("manager"), entry.get("operation"), entry.get("subresource"))
        if named == (FIELD_MANAGER, "Apply", None):
            fields = dict(entry.get("fieldsV1") or {})
            if "f:ownerReferences" in fields.get("f:metadata", {}):
                fields["f:metadata"] = {**fields["f:metadata"], "f:ownerReferences": {}}
            return sys.intern(json.dumps(fields, sort_keys=True))
    return ""


def is_as_applied(manifest: Object, digest: str, seen: Object) -> bool:
    """Return True if `seen`, a trimmed child, still has all of `manifest`, whose digest is `digest`."""
    if seen.get("applied") != digest or not seen.get("owned"):
        return False
    body = {name: value for name, value in manifest.items() if name in ("metadata", "spec")}
    body["metadata"] = {name: value for name, value in body["metadata"].items() if name not in ("name", "namespace")}
    return _owns(json.loads(seen["owned"]), body)


def _owns(fields: Object, value: Any) -> bool:
    """Return True if a set of fields (FieldsV1) has all of `value`; an empty set is one leaf."""
    if isinstance(value, Mapping):
        return all(
            f"f:{name}" in fields and (not fields[f"f:{name}"] or _owns(fields[f"f:{name}"], inner))
            for name, inner in value.items()
        )
    if isinstance(value, list):
        return all(any(is_item(name, item) and _owns(fields[name], item) for name in fields) for item in value)
    return True


def is_item(name: str, item: Any) -> bool:
    """Return True if a key of FieldsV1 (`k:{"name":"x"}`, `v:"x"`) means this item of a list."""
    sort, _, rest = name.partition(":")
    if sort == "k":
        return isinstance(item, Mapping) and all(
            key not in item or item[key] == value for key, value in json.loads(rest).items()
        )
    return sort == "v" and json.loads(rest) == item
