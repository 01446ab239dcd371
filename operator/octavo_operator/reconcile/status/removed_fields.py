"""Fields of the pod template that the API server removes without a word, since their feature gate is off. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo_operator.api.conditions import Reason
from octavo_operator.api.resource import LLMService
from octavo_operator.reconcile.problem import Problem


def removed_fields(service: LLMService, deployment: Mapping[str, Any]) -> list[Problem]:
    """Return the problems that the live Deployment, as the watch keeps it, lacks claims or images that pods need."""
    kept, spec = deployment.get("gated") or {}, service.spec
    found = []
    if spec.accelerator.claims and kept.get("claims") is False:
        found.append(
            "the API server has removed spec.accelerator.claims from the pods, which get no device: dynamic resource "
            "allocation is on by default since Kubernetes 1.34, and before needs its feature gates; or use "
            "spec.accelerator.count with a device plugin"
        )
    sources = (spec.model.source, *(adapter.source for adapter in spec.adapters))
    if any(source.image for source in sources) and kept.get("images") is False:
        found.append(
            "the API server has removed the volumes of images from the pods, which do not find the model or adapter: "
            "image volumes are on by default since Kubernetes 1.35, and before need the feature gate ImageVolume; or "
            "use another source, such as persistentVolumeClaim"
        )
    return [Problem(Reason.FEATURE_GATE_OFF, message) for message in found]
