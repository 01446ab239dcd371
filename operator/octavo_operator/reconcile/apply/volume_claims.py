"""Claims of caches: their size after others enlarged them, since none can shrink, and why one cannot grow. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo_operator.api.quantity import parse_quantity

CLAIM = "PersistentVolumeClaim"
_RESIZE_ERRORS = ("ControllerResizeError", "NodeResizeError")
CLAIM_IN_USE = "kubernetes.io/pvc-protection"
"""The finalizer of a claim that pods use, which is removed once these have ended."""


def with_live_size(manifest: dict[str, Any], live: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return `manifest`; a claim gets its size in `live` where that is larger, since a smaller one is refused."""
    if manifest["kind"] != CLAIM or live is None:
        return manifest
    wanted, there = _size(manifest), _size(live)
    if not there or parse_quantity(there) <= parse_quantity(wanted):
        return manifest
    resources = {**manifest["spec"]["resources"], "requests": {"storage": there}}
    return {**manifest, "spec": {**manifest["spec"], "resources": resources}}


def _size(claim: Mapping[str, Any]) -> str:
    return str(((claim["spec"].get("resources") or {}).get("requests") or {}).get("storage") or "")


def resize_error(claim: Mapping[str, Any]) -> str:
    """Return what kept a claim's volume from growing, as the driver of its storage says; empty: nothing did."""
    conditions = (claim.get("status") or {}).get("conditions") or ()
    failed = (each for each in conditions if each["type"] in _RESIZE_ERRORS and each["status"] == "True")
    return next((str(each.get("message") or each["type"]) for each in failed), "")
