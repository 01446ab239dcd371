"""Children without the owner reference or the label that they were applied with, since admission removes these."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo_operator.api.conditions import Reason
from octavo_operator.api.names import SERVICE_LABEL
from octavo_operator.reconcile.observation.observe import Object, is_terminating
from octavo_operator.reconcile.problem import Problem


def stripped_children(children: Mapping[tuple[str, str], Object]) -> list[Problem]:
    """Return the problems of children as a reconcile has just left them.

    What another client has removed is back by then. What the operator has not applied lacks nothing, such as an object
    that a user has made with our label, or a report in the place of an autoscaler.
    """
    return [
        Problem(
            Reason.FIELD_CONFLICT,
            f"{kind} {name} has {lacking}: an admission webhook or policy removes it; have the operator's objects "
            "exempted",
        )
        for (kind, name), child in children.items()
        if child.get("applied") and not is_terminating(child) and (lacking := _lacking(child["metadata"]))
    ]


def _lacking(metadata: Mapping[str, Any]) -> str:
    if not metadata.get("ownerReferences"):
        return "no owner though it was applied with one, so that it stays when the LLMService is deleted"
    if SERVICE_LABEL not in (metadata.get("labels") or {}):
        return f"no label {SERVICE_LABEL} though it was applied with it, so that its changes are noticed late"
    return ""
