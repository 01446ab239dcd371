"""A draft of an LLMService, with notes on settings that could not be converted."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from octavo_operator.api.names import API_VERSION, KIND


class NotConvertibleError(ValueError):
    """The object cannot become an LLMService; the message says why and what to do."""


@dataclass
class Draft:
    """The manifest so far. `notes` are sentences about what the reader has to decide or do."""

    kind: str
    name: str
    namespace: str | None = None
    spec: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def manifest(self) -> dict[str, Any]:
        """Return the LLMService, without empty sections."""
        metadata = {
            "name": re.sub(r"[._]+", "-", self.name),
            **({"namespace": self.namespace} if self.namespace else {}),
        }
        spec = {key: value for key, value in self.spec.items() if value not in ({}, [], None)}
        return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}

    def note(self, text: str) -> None:
        """Add a sentence for the reader."""
        self.notes.append(text)


def source_of(url: str, revision: str | None = None) -> dict[str, Any]:
    """Return `model.source` of a model's address; NotConvertibleError for an address that Octavo has no source for."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        scheme, rest = "hf", url
    first, _, path = rest.partition("/")
    if scheme == "hf" and path:
        return {"huggingFace": {"repository": rest, **({"revision": revision} if revision else {})}}
    if scheme == "s3" and first:
        return {"s3": {"bucket": first, **({"prefix": path.strip("/")} if path.strip("/") else {})}}
    if scheme == "pvc" and first:
        return {"persistentVolumeClaim": {"claimName": first, **({"path": path.strip("/")} if path.strip("/") else {})}}
    raise NotConvertibleError(
        f"{url} has no counterpart: name a Hugging Face repository, an s3:// prefix, or a PersistentVolumeClaim that "
        "holds the model or its .gguf file"
    )
