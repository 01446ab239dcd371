"""Renders an LLMService as Kubernetes objects. Pure: no clock, no client, the same bytes for the same input."""

from octavo_operator.render.children import DEFAULT_METRICS_URL, DEFAULT_NAMESPACE, OPTIONAL_KINDS, RenderConfig, render
from octavo_operator.render.unsupported_fields import UnsupportedField, blocking, unsupported_fields

__all__ = [
    "DEFAULT_METRICS_URL",
    "DEFAULT_NAMESPACE",
    "OPTIONAL_KINDS",
    "RenderConfig",
    "UnsupportedField",
    "blocking",
    "render",
    "unsupported_fields",
]
