"""Names and labels: the API group, what children are called, and how they are found again."""

from __future__ import annotations

import re

GROUP = "octavo.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "LLMService"
PLURAL = "llmservices"

FIELD_MANAGER = "octavo-operator"
SERVICE_LABEL = f"{GROUP}/llmservice"
NAME_LABEL = "app.kubernetes.io/name"
MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"

METRICS_API = "external.metrics.k8s.io/v1beta1"
METRICS_API_SERVICE = ".".join(reversed(METRICS_API.split("/")))
"""The APIService that says who answers for external metrics; a cluster has one."""
METRICS_API_NAME = "octavo-metrics-api"
"""What the chart calls Octavo's own, in the label app.kubernetes.io/name of all its objects."""
WAITING_METRIC = "octavo_requests_waiting"
IN_FLIGHT_METRIC = "octavo_requests_in_flight"
METRIC_LABEL = "llmservice"
"""The external metrics by which replicas follow the load, and the label that names the LLMService in them."""


DNS_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
"""A name as in DNS (RFC 1123), of 63 characters at most: what namespaces, and LLMServices too, are called."""


def is_dns_label(text: str) -> bool:
    """Whether a namespace or an LLMService can be called `text`."""
    return len(text) <= 63 and re.fullmatch(DNS_LABEL, text) is not None


def labels(service_name: str) -> dict[str, str]:
    """The labels of every child of the LLMService called `service_name`."""
    return {
        NAME_LABEL: "octavo",
        "app.kubernetes.io/instance": service_name,
        MANAGED_BY_LABEL: FIELD_MANAGER,
        "app.kubernetes.io/component": "engine",
        SERVICE_LABEL: service_name,
    }


def selector(service_name: str) -> dict[str, str]:
    """The label that selects the pods of a service: it never changes, since a Deployment's selector cannot."""
    return {SERVICE_LABEL: service_name}


def cache_claim(service_name: str) -> str:
    """The PersistentVolumeClaim that keeps downloads."""
    return f"{service_name}-cache"
