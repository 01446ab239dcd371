"""Names and labels: the API group, the names of children, and the labels by which they are found."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

GROUP = "octavo.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "LLMService"
PLURAL = "llmservices"

FIELD_MANAGER = "octavo-operator"
SCALE_MANAGER = f"{FIELD_MANAGER}-autoscaler"
"""The field manager of writes to /scale, by which the operator itself scales; its manifests then omit the replicas."""
SERVICE_LABEL = f"{GROUP}/llmservice"
NAME_LABEL = "app.kubernetes.io/name"
MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
INSTANCE_LABEL = "app.kubernetes.io/instance"
COMPONENT_LABEL = "app.kubernetes.io/component"
"""The label with the role of a child or pod: engine or metrics. The values gateway and worker are reserved."""
ENGINE = "engine"
METRICS = "metrics"
"""The component of the Service by which Prometheus finds the pods, and the name of its port."""
TRACK_LABEL = f"{GROUP}/track"
"""The label with the track of a pod: stable. The value canary is reserved for a version that is tried beside it."""
STABLE = "stable"

ADAPTERS_ANNOTATION = f"{GROUP}/adapters"
"""The annotation of a pod with the LoRA adapters that it should have, as JSON."""
DELETION_COST_ANNOTATION = "controller.kubernetes.io/pod-deletion-cost"
"""Kubernetes' own annotation of a pod: of those that a ReplicaSet may end, the ones with a lower cost end first."""
SPARED = "1"
"""The cost of pods that are to end after others; pods without one have 0."""

METRICS_API = "external.metrics.k8s.io/v1beta1"
METRICS_API_SERVICE = ".".join(reversed(METRICS_API.split("/")))
"""The APIService that names the cluster's only server for external metrics."""
METRICS_API_NAME = "octavo-metrics-api"
"""The name of Octavo's own metrics API, in the chart's label app.kubernetes.io/name of all its objects."""
WAITING_METRIC = "octavo_requests_waiting"
IN_FLIGHT_METRIC = "octavo_requests_in_flight"
METRIC_LABEL = "llmservice"
"""The external metrics by which replicas follow the load, and the label that names the LLMService in them."""


DNS_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
"""A name as in DNS (RFC 1123), of 63 characters at most: what namespaces, and LLMServices too, are called."""


def is_dns_label(text: str) -> bool:
    """Return True if `text` can be the name of a namespace or an LLMService."""
    return len(text) <= 63 and re.fullmatch(DNS_LABEL, text) is not None


def labels(service_name: str) -> dict[str, str]:
    """Return the labels of every child of the LLMService called `service_name`."""
    return {
        NAME_LABEL: "octavo",
        INSTANCE_LABEL: service_name,
        MANAGED_BY_LABEL: FIELD_MANAGER,
        COMPONENT_LABEL: ENGINE,
        SERVICE_LABEL: service_name,
    }


def pod_labels(service_name: str) -> dict[str, str]:
    """Return the labels of the engine's pods."""
    return {**labels(service_name), TRACK_LABEL: STABLE}


def selector(service_name: str) -> dict[str, str]:
    """Return the labels that select a service's engine pods. They never change, as a Deployment's selector cannot.

    They are more than one, so that pods of another role or track can be distinguished, and one label that is set by
    mistake leads no requests to a pod.
    """
    return {SERVICE_LABEL: service_name, COMPONENT_LABEL: ENGINE, TRACK_LABEL: STABLE}


def selector_of_component(service_name: str, component: str) -> dict[str, str]:
    """Return the labels that select the children of a service with this component."""
    return {SERVICE_LABEL: service_name, COMPONENT_LABEL: component}


def is_engine_pod(pod_labels: Mapping[str, str]) -> bool:
    """Return True if a pod with these labels is one of an LLMService's engine, of any track."""
    return SERVICE_LABEL in pod_labels and pod_labels.get(COMPONENT_LABEL) == ENGINE and TRACK_LABEL in pod_labels


def other_controller(pod_metadata: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the owner that controls an engine pod, if it is no ReplicaSet of the LLMService that its label names.

    Kubernetes names a Deployment's ReplicaSets after it. None: it is one, or the pod has no controller.
    """
    service = (pod_metadata.get("labels") or {}).get(SERVICE_LABEL)
    owners = pod_metadata.get("ownerReferences") or ()
    controller: Mapping[str, Any] | None = next((each for each in owners if each.get("controller")), None)
    if controller is None or (controller["kind"], controller["name"].rpartition("-")[0]) == ("ReplicaSet", service):
        return None
    return controller


def metrics_service_name(service_name: str) -> str:
    """Return the headless Service by which Prometheus finds the pods."""
    return f"{service_name}-metrics"


def keda_autoscaler(service_name: str) -> str:
    """Return the HorizontalPodAutoscaler that KEDA makes of a service's ScaledObject."""
    return f"keda-hpa-{service_name}"


def cache_claim(service_name: str) -> str:
    """Return the PersistentVolumeClaim that keeps downloads."""
    return f"{service_name}-cache"
