"""All children of an LLMService, in the order in which they are applied."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from octavo_operator.api.resource import LLMService
from octavo_operator.render.deployment import deployment
from octavo_operator.render.pdb import pod_disruption_budget
from octavo_operator.render.pvc import persistent_volume_claim
from octavo_operator.render.service import service


@dataclass(frozen=True)
class RenderConfig:
    """What rendering needs beside the LLMService itself."""

    engine_image: str


def render(llmservice: LLMService, config: RenderConfig) -> list[dict[str, Any]]:
    """The objects that `llmservice` should have, each complete for server-side apply."""
    children = [
        persistent_volume_claim(llmservice),
        service(llmservice),
        pod_disruption_budget(llmservice),
        deployment(llmservice, config.engine_image),
    ]
    return [child for child in children if child is not None]
