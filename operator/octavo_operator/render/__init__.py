"""What an LLMService should be, as Kubernetes objects. Pure: no clock, no client, the same bytes for the same input."""

from octavo_operator.render.children import DEFAULT_METRICS_URL, DEFAULT_NAMESPACE, OPTIONAL_KINDS, RenderConfig, render
from octavo_operator.render.pending import Pending, blocking, not_yet_acted_on

__all__ = [
    "DEFAULT_METRICS_URL",
    "DEFAULT_NAMESPACE",
    "OPTIONAL_KINDS",
    "Pending",
    "RenderConfig",
    "blocking",
    "not_yet_acted_on",
    "render",
]
