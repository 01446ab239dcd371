"""Compares what config.json says of the head with the files: some have one although it is tied, others have none."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from octavo_engine.model.checkpoint.safetensors_file import SafetensorsHeader, TensorHeader
from octavo_engine.model.spec import ModelSpec

log = logging.getLogger(__name__)

_PART = 16 << 20
"""The number of bytes that are compared at a time."""
_PACKED = ("weight_packed", "qweight")
"""Names that schemes give the codes of a weight instead of `weight`."""


def with_stored_head(spec: ModelSpec, headers: Sequence[SafetensorsHeader]) -> ModelSpec:
    """Return `spec` untied if the weight files with these headers have a head whose values are not the embedding's.

    transformers too ties them only where both are equal or one is missing. To find out, both tensors are read, unless
    the head is packed, which is never a copy. Without headers `spec` stays as it is.
    """
    if spec.head is None or not spec.head.tied or not headers:
        return spec
    head, embedding = f"{spec.names.head}.weight", f"{spec.names.embedding}.weight"
    packed = {f"{spec.names.head}.{end}" for end in _PACKED}
    found = {
        own: (header.path, tensor)
        for header in headers
        for name, tensor in header.tensors.items()
        if (own := spec.stored_names.own(name)) in {head, embedding} | packed
    }
    if packed.isdisjoint(found) and (len(found) < 2 or _alike(*found[head], *found[embedding])):
        return spec
    log.warning(
        "%s: %s differs from %s: they are loaded as two weights, although config.json says that they are tied",
        headers[0].path.parent,
        head,
        embedding,
    )
    return replace(spec, head=replace(spec.head, tied=False))


def _alike(path: Path, tensor: TensorHeader, other_path: Path, other: TensorHeader) -> bool:
    """Return True if both tensors have the same shape, type and bytes."""
    if (tensor.dtype, tensor.shape) != (other.dtype, other.shape):
        return False
    with path.open("rb") as file, other_path.open("rb") as other_file:
        file.seek(tensor.begin)
        other_file.seek(other.begin)
        left = tensor.num_bytes
        while left:
            part = min(left, _PART)
            if file.read(part) != other_file.read(part):
                return False
            left -= part
    return True


def tied_if_no_head(spec: ModelSpec, headers: Sequence[SafetensorsHeader]) -> ModelSpec:
    """Return `spec` tied if there are weight files with these headers, and they have no head."""
    if spec.head is None or not headers:
        return spec
    heads = {f"{spec.names.head}.{end}" for end in ("weight", *_PACKED)}
    if any(spec.stored_names.own(name) in heads for header in headers for name in header.tensors):
        return spec
    return replace(spec, head=replace(spec.head, tied=True))
