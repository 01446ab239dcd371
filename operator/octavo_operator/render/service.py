"""The Service in front of the engine's pods."""

from __future__ import annotations

from typing import Any

from octavo_operator.api.names import selector
from octavo_operator.api.resource import LLMService
from octavo_operator.render.container import PORT_NAME
from octavo_operator.render.metadata import child_metadata


def service(llmservice: LLMService) -> dict[str, Any]:
    """Return a Service named like the LLMService."""
    settings = llmservice.spec.service
    metadata = child_metadata(llmservice)
    if settings.annotations:
        metadata["annotations"] = dict(settings.annotations)
    port = {
        "name": PORT_NAME,
        "port": settings.port,
        "protocol": "TCP",
        "targetPort": PORT_NAME,
        "appProtocol": settings.app_protocol,
    }
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {"type": settings.type, "selector": selector(llmservice.name), "ports": [port]},
    }


def url(llmservice: LLMService) -> str:
    """Return the base URL of the OpenAI API within the cluster."""
    return f"http://{llmservice.name}.{llmservice.namespace}.svc:{llmservice.spec.service.port}/v1"
