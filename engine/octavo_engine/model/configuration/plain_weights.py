"""Finds weights that a quantized checkpoint has in floating point although config.json says that they are quantized."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from octavo_engine.model.checkpoint.safetensors_file import SafetensorsHeader
from octavo_engine.model.checkpoint.tensors import FLOATS
from octavo_engine.model.quantization.module_rules import Quantization, Rule
from octavo_engine.model.quantization.unquantized import UNQUANTIZED
from octavo_engine.model.spec import ModelSpec

log = logging.getLogger(__name__)

_WEIGHT, _BIAS = "weight", "bias"


def with_plain_weights(spec: ModelSpec, headers: Sequence[SafetensorsHeader], folder: Path) -> ModelSpec:
    """Return `spec` whose quantization leaves out modules that have a matrix in floating point and nothing else.

    Two kinds of tools write such checkpoints. Some quantize linear layers only, and transformers' experts are plain
    parameters then, which are saved as linear layers. And transformers leaves a matrix that does not consist of
    complete blocks out of FP8. `headers` are those of the weight files in `folder`; without any, `spec` stays as it is.
    """
    quantization = spec.quantization
    if quantization is None or not headers:
        return spec
    plain = frozenset(_plain_modules(spec, quantization, headers))
    if not plain:
        return spec
    log.info(
        "%s: %d matrices, such as %s, are read in floating point as the files have them, whatever config.json says",
        folder,
        len(plain),
        min(plain),
    )
    rules = (Rule(names=plain), *quantization.rules)
    return replace(spec, quantization=replace(quantization, rules=rules))


def _plain_modules(spec: ModelSpec, quantization: Quantization, headers: Sequence[SafetensorsHeader]) -> Iterator[str]:
    """Yield the names of modules that are stored in floating point and that `quantization` takes for quantized."""
    experts = set(_experts_in_one_tensor(spec))
    matrices, others = set[str](), defaultdict[str, set[str]](set)
    for header in headers:
        for stored, tensor in header.tensors.items():
            name = spec.stored_names.own(stored)
            if name is None:
                continue
            module, _, kind = name.rpartition(".")
            is_matrix = tensor.dtype in FLOATS and len(tensor.shape) > 1
            if name in experts and is_matrix:
                matrices.add(name)
            elif kind == _WEIGHT and is_matrix:
                matrices.add(module)
            elif kind != _BIAS:  # bitsandbytes names others after the weight, which may be stored as floats
                others[module.removesuffix(f".{_WEIGHT}")].add(kind)
    never = {spec.names.embedding} if quantization.head else {spec.names.embedding, spec.names.head}
    for module in matrices - others.keys() - never:
        if quantization.method(*spec.stored_names.stored(module)) is not UNQUANTIZED:
            yield module


def _experts_in_one_tensor(spec: ModelSpec) -> Iterator[str]:
    """Yield the full names of tensors that hold all experts of a layer."""
    for layer in range(spec.num_layers):
        names = (spec.names.of_layer(role, layer) for role in ("expert_gate", "expert_up", "expert_down"))
        yield from (name for name in names if "{expert}" not in name)
