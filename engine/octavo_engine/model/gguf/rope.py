"""Translates a GGUF file's keys and vectors about RoPE to the object in config.json."""

from __future__ import annotations

import math
from typing import Any

from octavo_engine.errors import ModelLoadError
from octavo_engine.model.gguf.file import GGUFFile
from octavo_engine.model.gguf.header import Header
from octavo_engine.model.gguf.rows import TensorFile, dequantize_rows

_SCALINGS = ("linear", "yarn")


def rope_parameters(header: Header) -> dict[str, Any]:
    """Return the object about RoPE in config.json; ModelLoadError if the scaling is not supported."""
    rope: dict[str, Any] = {"rope_theta": header.fields.number(header.key("rope.freq_base"), 1e-3, 1e12, default=1e4)}
    scaling, factor = header.rope_scaling()
    if "rope_freqs.weight" in header.file.tensors:
        if scaling in _SCALINGS and factor not in (None, 1):
            why = "is not supported beside the tensor 'rope_freqs.weight'"
            raise header.fields.wrong(header.key("rope.scaling.type"), scaling, why)
        return {**rope, "rope_type": "factors", "factors": rope_factors(header.file, "rope_freqs.weight")}
    if "rope_factors_short.weight" in header.file.tensors:
        lengths = {
            f"{kind}_factor": rope_factors(header.file, f"rope_factors_{kind}.weight") for kind in ("short", "long")
        }
        attention = header.given({"attention_factor": "rope.scaling.attn_factor"})
        return {**rope, "rope_type": "longrope", **lengths, **attention}
    if scaling == "none":
        return rope
    if scaling not in _SCALINGS:
        key = header.key("rope.scaling.type")
        raise header.fields.wrong(key, scaling, f"is not supported; supported: none, {', '.join(_SCALINGS)}")
    if factor is None:
        raise ModelLoadError(f"{header.fields.origin}: {header.key('rope.scaling.factor')} is missing")
    if scaling == "yarn":
        rope |= _yarn(header, factor)
    return {**rope, "rope_type": scaling, "factor": factor}


def _yarn(header: Header, factor: float) -> dict[str, Any]:
    """Return YaRN's fields.

    The converter writes the factor of attention under a key that llama.cpp does not read; the usual one is
    0.1 ln(factor) + 1, with which both compute.
    """
    values = header.given({"beta_fast": "rope.scaling.yarn_beta_fast", "beta_slow": "rope.scaling.yarn_beta_slow"})
    if header.has(original := "rope.scaling.original_context_length"):
        values["original_max_position_embeddings"] = header.integer(original, 2, 1 << 30)
    usual = 0.1 * math.log(max(1.0, factor)) + 1
    stated = header.fields.values.get(header.key(attention := "rope.scaling.yarn_attn_factor"))
    if isinstance(stated, float) and math.isclose(stated, usual, rel_tol=1e-4):
        values["attention_factor"] = header.number(attention)
    return values


def rope_factors(file: GGUFFile, name: str) -> list[float]:
    """Return a vector in the file; ModelLoadError if it is missing."""
    if (tensor := file.tensors.get(name)) is None:
        raise ModelLoadError(f"{file.path}: the tensor {name!r} is missing")
    return [float(value) for value in dequantize_rows(TensorFile(tensor.path), tensor, 0, 1).reshape(-1)]
