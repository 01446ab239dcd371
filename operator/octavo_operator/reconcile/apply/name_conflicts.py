"""Objects that have a child's name and are not to be written: another's, or one that is about to go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from octavo_operator.api.names import KIND
from octavo_operator.api.resource import LLMService
from octavo_operator.reconcile.api_requests.api_error import ApiError
from octavo_operator.reconcile.apply.dependencies import Identity
from octavo_operator.reconcile.apply.orphans import is_of_a_namesake
from octavo_operator.reconcile.apply.volume_claims import CLAIM_IN_USE
from octavo_operator.reconcile.kinds import BY_NAME, CHILDREN, OPTIONAL
from octavo_operator.reconcile.observation.observe import (
    FOREGROUND,
    belongs_to,
    child_names,
    is_stripped,
    is_terminating,
)


class NameTakenError(ApiError):
    """An object of the child's name exists and is not ours. The operator found this, not the API server.

    No watch tells when that name is free, and looking is cheap.
    """

    longest_pause = 15.0

    def __init__(self, identity: Identity, live: Mapping[str, Any], service: str) -> None:
        kind, name = identity
        owners = [each for each in live["metadata"].get("ownerReferences") or () if each.get("controller")]
        whose = "".join(f" but to {each['kind']} {each['name']}" for each in owners)
        help_ = _way_out(identity, owners, service)
        super().__init__(
            409, "NameTaken", f"{kind} {name} exists and does not belong to this LLMService{whose}; {help_}"
        )

    @property
    def transient(self) -> bool:
        """Return False: only a person can resolve the error."""
        return False


def _way_out(identity: Identity, owners: Sequence[Mapping[str, Any]], service: str) -> str:
    """Return what a person can do about an object of a child's name that has these controllers."""
    kind, name = identity
    if any(_is_child(each, service) for each in owners):  # to delete the owner would end what serves
        return f"kubectl delete {kind.lower()} {name}: this LLMService gets its own, if it still needs one then"
    if any(each["kind"] == KIND for each in owners):  # to delete the owner would end what it serves
        return "create one of the two LLMServices under another name"
    return "rename the LLMService, or delete " + ("its owner" if owners else "that object")


def _is_child(owner: Mapping[str, Any], service: str) -> bool:
    """Return True if an owner has the kind and the name of a child, as where another client changed the owner."""
    kind = BY_NAME.get(owner["kind"])
    return kind in (*CHILDREN, *OPTIONAL) and owner["name"] in child_names(kind, service)


class StillTerminatingError(ApiError):
    """An object of the child's name is terminating. The operator found this; it is reported if it lasts."""

    def __init__(self, identity: Identity, what: str) -> None:
        super().__init__(409, "Terminating", f"{identity[0]} {identity[1]} {what}")


def is_ours(live: Mapping[str, Any], service: LLMService, digest: str, applied_uid: str) -> bool:
    """Return True if a live object of a child's name is this LLMService's, also where another client has stripped it.

    `digest`: of the manifest; `applied_uid`: of the object that this LLMService applied last, empty if not known.
    """
    return belongs_to(live, service.name, service.metadata.uid or "") or is_stripped(live, digest, applied_uid)


def refuse_name_conflict(
    identity: Identity, live: Mapping[str, Any], service: LLMService, digest: str, applied_uid: str
) -> None:
    """Raise NameTakenError or StillTerminatingError where `live` is not to be written: it is another's, or about to go.

    `digest` and `applied_uid`: as in `is_ours`.
    """
    metadata, ours = live["metadata"], is_ours(live, service, digest, applied_uid)
    if not ours and not is_of_a_namesake(live, service.name):
        raise NameTakenError(identity, live, service.name)
    if not ours and not is_terminating(live):
        what = "is still that of an LLMService of this name that was deleted; it is created again once the cluster's "
        raise StillTerminatingError(identity, what + "garbage collector has deleted it, usually within seconds")
    if is_terminating(live):
        held = ", ".join(metadata.get("finalizers") or ()) or "its grace period"
        since = metadata["deletionTimestamp"]
        what = f"is being deleted (asked for at {since}) and is created again once it is gone; {held} holds it"
        help_ = "end what uses it, or remove the finalizer if what set it is gone"
        if metadata.get("finalizers") == [CLAIM_IN_USE]:
            help_ = "pods use it: set spec.suspend to true or wait until they end; it is then filled again"
        if metadata.get("finalizers") == [FOREGROUND]:
            help_ = (
                "Kubernetes waits until what belongs to it has ended, such as its pods, and then removes the finalizer"
            )
        raise StillTerminatingError(identity, f"{what}: {help_}" if metadata.get("finalizers") else what)
