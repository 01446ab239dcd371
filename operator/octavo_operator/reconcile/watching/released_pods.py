"""The problems of engine pods that no ReplicaSet has any more, since their labels were changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from octavo_operator.api.conditions import Reason
from octavo_operator.api.names import FIELD_MANAGER, INSTANCE_LABEL, MANAGED_BY_LABEL, selector
from octavo_operator.reconcile.problem import Problem

MANY = 4
"""So many pods of one LLMService were not all changed by hand."""


def is_released(metadata: Mapping[str, Any]) -> bool:
    """Return True if no controller has the pod, and it is not about to go."""
    owners: Iterable[Mapping[str, Any]] = metadata.get("ownerReferences") or ()
    return not any(each.get("controller") for each in owners) and not metadata.get("deletionTimestamp")


def released_pods(pods: Sequence[Mapping[str, Any]], service: str) -> list[Problem]:
    """Return the problem of each pod, given by its metadata; of MANY pods or more one problem of them all.

    Then an admission policy or webhook takes the label off each new pod, and the ReplicaSet, which does not know the
    pod any more, makes another one without end.
    """
    if len(pods) < MANY:
        return [_of_one(pod, service) for pod in pods]
    lost = sorted({label for pod in pods for label in _wrong(pod, service)}) or ["pod-template-hash"]
    return [
        Problem(
            Reason.RELEASED_POD,
            f"{len(pods)} pods run outside of Deployment {service}, which makes others in their place again and again, "
            f"as where an admission policy or webhook changes the labels of new pods ({', '.join(lost)}): kubectl get "
            "mutatingwebhookconfigurations (and mutatingadmissionpolicies, where the cluster has these); set "
            "spec.suspend to true until it leaves the labels alone; the pods keep their GPUs and memory until they are "
            "deleted, those that still serve as well: kubectl delete pods --selector "
            f"{MANAGED_BY_LABEL}={FIELD_MANAGER},{INSTANCE_LABEL}={service}",
        )
    ]


def _of_one(metadata: Mapping[str, Any], service: str) -> Problem:
    wrong, name = _wrong(metadata, service), metadata["name"]
    lost = f"lacks the label {', '.join(wrong)}" if wrong else "has lost its label pod-template-hash, or its owner"
    traffic = "gets no requests from the Service" if wrong else "still gets requests from the Service"
    back = f" To keep it, put the label back: kubectl label --overwrite pod {name} {' '.join(wrong)}" if wrong else ""
    return Problem(
        Reason.RELEASED_POD,
        f"pod {name} runs outside of Deployment {service}, which has another in its place: it {lost}, {traffic}, and "
        f"keeps its GPUs and memory until it is deleted: kubectl delete pod {name}.{back}",
    )


def _wrong(metadata: Mapping[str, Any], service: str) -> list[str]:
    """Return the labels of the Service's selector that the pod lacks."""
    labels = metadata.get("labels") or {}
    return [f"{name}={value}" for name, value in selector(service).items() if labels.get(name) != value]
