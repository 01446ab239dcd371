"""PodDisruptionBudgets of others that cover an LLMService's pods beside its own. Pure.

Kubernetes evicts no pod that two budgets cover, so that no node with such a pod can be drained.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from octavo_operator.api.conditions import Reason
from octavo_operator.api.names import FIELD_MANAGER, MANAGED_BY_LABEL
from octavo_operator.reconcile.problem import Problem

BUDGETS = f"{MANAGED_BY_LABEL}!={FIELD_MANAGER}"
"""Selects the budgets that the operator has not made."""


def foreign_budget(body: Mapping[str, Any], pods: Iterable[Mapping[str, Any]]) -> Problem | None:
    """Return the problem of another's budget that covers one of these pods, which have one; None: it covers none."""
    chosen = (body.get("spec") or {}).get("selector")
    covered = [pod["metadata"] for pod in pods if chosen is not None and selects(chosen, pod["metadata"].get("labels"))]
    if not covered:
        return None
    name = body["metadata"]["name"]
    return Problem(
        Reason.SECOND_BUDGET,
        f"PodDisruptionBudget {name} covers pod {covered[0]['name']} beside the LLMService's own: Kubernetes evicts no "
        f"pod that two budgets cover, so its node cannot be drained; kubectl delete pdb {name}, change its selector or "
        "set spec.disruption to null",
    )


def selects(selector: Mapping[str, Any], labels: Mapping[str, str] | None) -> bool:
    """Return True if a selector, as in `metav1.LabelSelector`, selects these labels; an empty one selects all."""
    there = labels or {}
    if any(there.get(name) != value for name, value in (selector.get("matchLabels") or {}).items()):
        return False
    return all(_holds(each, there) for each in selector.get("matchExpressions") or ())


def _holds(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    value, values = labels.get(expression["key"]), expression.get("values") or ()
    match expression["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case _:  # DoesNotExist
            return value is None
