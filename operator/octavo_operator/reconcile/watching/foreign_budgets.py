"""PodDisruptionBudgets of others that cover an LLMService's pods beside its own. Pure.

Kubernetes evicts no pod that two budgets cover, so that no node with such a pod can be drained.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from octavo_operator.api.conditions import Reason
from octavo_operator.api.names import FIELD_MANAGER, MANAGED_BY_LABEL
from octavo_operator.reconcile.observation.observe import Key
from octavo_operator.reconcile.problem import Problem

BUDGETS = f"{MANAGED_BY_LABEL}!={FIELD_MANAGER}"
"""Selects the budgets that the operator has not made."""


def foreign_budgets(
    budgets: Iterable[Mapping[str, Any]], pods_by_service: Mapping[Key, Iterable[Mapping[str, Any]]]
) -> Iterator[tuple[Key, Problem]]:
    """Yield each LLMService that has a budget, and pods that another's budget covers too, with the problem.

    Each budget is compared only with the pods that have the rarest of its `matchLabels`, without any with those of its
    namespace: where there are hundreds of both, hardly any covers one.
    """
    pods_of_namespace: dict[str, list[tuple[Key, Mapping[str, Any]]]] = {}
    pods_with_label: dict[tuple[str, tuple[str, str]], list[tuple[Key, Mapping[str, Any]]]] = {}
    for key, owned in pods_by_service.items():
        for pod in owned:
            metadata = pod["metadata"]
            pods_of_namespace.setdefault(key[0], []).append((key, metadata))
            for label in (metadata.get("labels") or {}).items():
                pods_with_label.setdefault((key[0], label), []).append((key, metadata))
    for body in budgets:
        namespace, chosen = body["metadata"]["namespace"], (body.get("spec") or {}).get("selector")
        if chosen is None:
            continue
        by_label = [pods_with_label.get((namespace, label), []) for label in (chosen.get("matchLabels") or {}).items()]
        candidates = min(by_label, key=len, default=pods_of_namespace.get(namespace, []))
        covered: dict[Key, str] = {}
        for key, metadata in candidates:
            if key not in covered and selects(chosen, metadata.get("labels")):
                covered[key] = metadata["name"]
        yield from ((key, _second_budget(body["metadata"]["name"], pod)) for key, pod in covered.items())


def _second_budget(name: str, pod: str) -> Problem:
    return Problem(
        Reason.SECOND_BUDGET,
        f"PodDisruptionBudget {name} covers pod {pod} beside the LLMService's own: Kubernetes evicts no "
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
