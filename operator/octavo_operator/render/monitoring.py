"""The common parts of objects for the Prometheus Operator: whether they are wanted, and their labels."""

from __future__ import annotations

from typing import Any

from octavo_operator.api.names import SERVICE_LABEL
from octavo_operator.api.resource import LLMService
from octavo_operator.render.metadata import child_metadata

LABEL = "llmservice"
"""The label of each series that names its LLMService."""


def is_wanted(llmservice: LLMService, kind: str, kinds: frozenset[str]) -> bool:
    """Return True if spec.monitoring asks for `kind`, given the optional `kinds` that the cluster has."""
    enabled = llmservice.spec.monitoring.enabled
    return enabled == "Always" or (enabled == "Auto" and kind in kinds)


def is_monitored_by(llmservice: LLMService, kind: str, kinds: frozenset[str]) -> bool:
    """Return True if `kind`, one of the two kinds of monitors, is the one that is wanted."""
    return llmservice.spec.monitoring.kind == kind and is_wanted(llmservice, kind, kinds)


def monitor(
    llmservice: LLMService, kind: str, kinds: frozenset[str], labels: dict[str, str], endpoints: dict[str, Any]
) -> dict[str, Any] | None:
    """Return a monitor of `kind` named like the LLMService, or None where none is wanted or `kinds` lacks it.

    It has the `endpoints` of the pods or Services with these `labels` scraped.
    """
    if not is_monitored_by(llmservice, kind, kinds):
        return None
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": kind,
        "metadata": monitoring_metadata(llmservice),
        "spec": {"selector": {"matchLabels": labels}, "jobLabel": "app.kubernetes.io/name", **endpoints},
    }


def monitoring_metadata(llmservice: LLMService) -> dict[str, Any]:
    """Return a child's metadata with the labels by which the user's Prometheus selects."""
    metadata = child_metadata(llmservice)
    return {**metadata, "labels": {**llmservice.spec.monitoring.labels, **metadata["labels"]}}


def endpoint(llmservice: LLMService, port: str, labelled: str) -> dict[str, Any]:
    """Return the endpoint of a monitor that scrapes `port`.

    `labelled` is the object whose label names the LLMService: pod or service.
    """
    label = "".join(c if c.isalnum() else "_" for c in SERVICE_LABEL)
    return {
        "port": port,
        "path": "/metrics",
        "interval": llmservice.spec.monitoring.interval,
        "relabelings": [{"sourceLabels": [f"__meta_kubernetes_{labelled}_label_{label}"], "targetLabel": LABEL}],
    }
