"""Writes each pod's list of LoRA adapters, an annotation, where it differs from the LLMService's adapters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from octavo_operator.api.names import ADAPTERS_ANNOTATION
from octavo_operator.api.resource import LLMService
from octavo_operator.reconcile.api_requests.api_error import ApiError
from octavo_operator.reconcile.kinds import POD, Kind
from octavo_operator.reconcile.pods.pod_phase import has_ended
from octavo_operator.render.adapters import adapter_list, digest_of_list

Object = Mapping[str, Any]
_GONE = (404, 409)
"""The API server's answers for a pod that was deleted, and for another pod of the same name."""


class PodWriter(Protocol):
    """The API calls that writing annotations makes."""

    async def merge(
        self, kind: Kind, namespace: str, name: str, patch: Mapping[str, Any], subresource: str = ""
    ) -> Any:
        """Merge `patch` into an object that exists; the live object."""


async def write_adapter_lists(
    cluster: PodWriter, service: LLMService, pods: Iterable[Object]
) -> dict[tuple[str, str], ApiError]:
    """Write the list of adapters to each pod of `service` that has another; return the failures by kind and name.

    Pods of a service without adapters keep what they have: they are about to be replaced by others without a sidecar.
    """
    failures: dict[tuple[str, str], ApiError] = {}
    if not service.spec.adapters:
        return failures
    for pod in pods:
        metadata, text = pod["metadata"], adapter_list(service.spec, (pod.get("spec") or {}).get("volumes") or ())
        if "deletionTimestamp" in metadata or has_ended(pod) or pod.get("adapters") == digest_of_list(text):
            continue
        patch = {"metadata": {"uid": metadata["uid"], "annotations": {ADAPTERS_ANNOTATION: text}}}
        try:
            await cluster.merge(POD, service.namespace, metadata["name"], patch)
        except ApiError as error:
            if error.status not in _GONE:
                failures[POD.name, metadata["name"]] = error
    return failures
