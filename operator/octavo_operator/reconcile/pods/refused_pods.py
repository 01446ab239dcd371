"""The refusal of the API server to make a Deployment's pods, as the Deployment's controller reports it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from octavo_operator.reconcile.pods.pod_view import condition_of

_NO_REPLICA_SET = "ReplicaSetCreateError"


@dataclass(frozen=True)
class Refusal:
    """The API server's words, and since when (RFC 3339).

    `whole`: not a pod was refused but the ReplicaSet of a revision, as by a quota on their number: of that revision
    there is nothing, and the Deployment's counters are still those of the revision before.
    """

    message: str
    since: str
    whole: bool = False


def refusal_of(deployment: Mapping[str, Any]) -> Refusal | None:
    """Return the present refusal; None: there is none."""
    pods, progressing = condition_of(deployment, "ReplicaFailure"), condition_of(deployment, "Progressing")
    if pods.get("status") == "True":
        return Refusal(str(pods.get("message")), pods.get("lastTransitionTime") or "")
    if progressing.get("status") == "False" and progressing.get("reason") == _NO_REPLICA_SET:
        return Refusal(str(progressing.get("message")), progressing.get("lastTransitionTime") or "", whole=True)
    return None
