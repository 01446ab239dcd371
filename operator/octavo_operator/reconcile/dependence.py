"""Children that name another child: where that name is a stranger's, they would write to or scale what is not ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from octavo_operator.reconcile.handover import DEPLOYMENT, SCALERS

_CLAIM = "PersistentVolumeClaim"
Error = TypeVar("Error", bound=Exception)


def named_by(manifest: Mapping[str, Any]) -> str | None:
    """Return the kind of the child that `manifest` names; None: it names none, as a Deployment without pods."""
    if manifest["kind"] in SCALERS:
        return DEPLOYMENT
    if manifest["kind"] == DEPLOYMENT and manifest["spec"].get("replicas") != 0:
        return _CLAIM
    return None


def stranger_in(manifest: Mapping[str, Any], taken: Mapping[tuple[str, str], Error]) -> Error | None:
    """Return the error of the child that `manifest` names, if its name is among those `taken` by others."""
    kind = named_by(manifest)
    return next((error for (other, _), error in taken.items() if other == kind), None)
