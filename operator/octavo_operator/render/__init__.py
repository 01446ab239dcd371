"""What an LLMService should be, as Kubernetes objects. Pure: no clock, no client, the same bytes for the same input."""

from octavo_operator.render.children import RenderConfig, render
from octavo_operator.render.pending import Pending, not_yet_acted_on

__all__ = ["Pending", "RenderConfig", "not_yet_acted_on", "render"]
