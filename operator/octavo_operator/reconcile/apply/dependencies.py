"""Children that refer to another child by name: if another's object has that name, they would act on that object."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

from octavo_operator.reconcile.apply.handover import DEPLOYMENT, SCALERS
from octavo_operator.reconcile.apply.volume_claims import CLAIM

Identity = tuple[str, str]
"""Kind and name of a child."""
Manifest = TypeVar("Manifest", bound=Mapping[str, Any])
Error = TypeVar("Error", bound=Exception)


def identity_of(manifest: Mapping[str, Any]) -> Identity:
    """Return the kind and name of a child's manifest."""
    return manifest["kind"], manifest["metadata"]["name"]


def named_by(manifest: Mapping[str, Any]) -> str | None:
    """Return the kind of the child that `manifest` names; None: it names none, as a Deployment without pods."""
    if manifest["kind"] in SCALERS:
        return DEPLOYMENT
    if manifest["kind"] == DEPLOYMENT and manifest["spec"].get("replicas") != 0:
        return CLAIM
    return None


def in_order(wanted: Sequence[Manifest], left: Collection[Identity]) -> list[Manifest]:
    """Return `wanted` with what an earlier reconcile has left first, and each child after the one that it names."""
    by_kind = {manifest["kind"]: manifest for manifest in wanted}
    first, ordered = [each for each in wanted if identity_of(each) in left], list[Manifest]()

    def add(manifest: Manifest) -> None:
        if named := by_kind.get(named_by(manifest) or ""):
            add(named)
        if manifest not in ordered:
            ordered.append(manifest)

    for each in (*first, *wanted):
        add(each)
    return ordered


def failure_of_named(manifest: Mapping[str, Any], failures: Mapping[Identity, Error]) -> tuple[Identity, Error] | None:
    """Return the child that `manifest` names with its failure, if it is among `failures`."""
    kind = named_by(manifest)
    return next((failed for failed in failures.items() if failed[0][0] == kind), None)
