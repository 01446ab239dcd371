"""Decides whether a GGUF file's blocks stay quantized in memory, and finds the block type of each linear layer."""

from __future__ import annotations

from dataclasses import replace

from octavo_engine.errors import ConfigurationError
from octavo_engine.model.configuration import quantized_online
from octavo_engine.model.gguf_file import read_gguf
from octavo_engine.model.gguf_names import stored_names
from octavo_engine.model.quantization.gguf import FORMATS, GGUFBlocks
from octavo_engine.model.quantization.registry import GGUF
from octavo_engine.model.quantization.selection import Quantization, Rule
from octavo_engine.model.quantization.unquantized import UNQUANTIZED
from octavo_engine.model.source import ModelFiles
from octavo_engine.model.spec import ModelSpec

_ROLES = ("query", "key", "value", "output", "gate", "up", "down", "shared_gate", "shared_up", "shared_down")
"""The roles of the linear layers in files of the supported architectures."""


def quantized(files: ModelFiles, spec: ModelSpec, name: str | None) -> ModelSpec:
    """`spec` as --quantization asks for it: `gguf` keeps the file's blocks, all other names are `quantized_online`'s.

    ConfigurationError where that is said of files that are no GGUF file, or have no blocks.
    """
    if name != GGUF:
        return quantized_online(spec, name)
    if files.gguf is None:
        raise ConfigurationError(
            f"--quantization {name}: is for .gguf files, and {files.name} is none; omit the flag, which takes the "
            "weights as they are stored"
        )
    blocks = stored_blocks(files, spec)
    if blocks is None:
        raise ConfigurationError(
            f"--quantization {name}: {files.gguf} has no linear layers in {', '.join(FORMATS)}; omit the flag"
        )
    return replace(spec, quantization=blocks)


def stored_blocks(files: ModelFiles, spec: ModelSpec) -> Quantization | None:
    """Return the linear layers that the file has in blocks which can stay quantized; None: it has none."""
    if files.gguf is None:
        return None
    file = read_gguf(files.gguf)
    modules = {spec.names.of_layer(role, layer) for layer in range(spec.num_layers) for role in _ROLES}
    names: dict[str, set[str]] = {}
    for stored, module in stored_names(file, spec.num_layers, modules).items():
        tensor = file.tensors.get(f"{stored.removesuffix('.weight')}.weight")
        if tensor is not None and tensor.type_name in FORMATS:
            names.setdefault(tensor.type_name, set()).add(module)
    rules = (Rule(method=GGUFBlocks(kind), names=frozenset(found)) for kind, found in sorted(names.items()))
    return Quantization(UNQUANTIZED, tuple(rules)) if names else None
