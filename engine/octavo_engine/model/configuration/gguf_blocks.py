"""Decides whether a GGUF file's blocks stay quantized in memory, and finds the block type of each linear layer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from octavo_engine.errors import ConfigurationError
from octavo_engine.model.configuration.read_spec import quantized_online
from octavo_engine.model.gguf.file import GGUFFile
from octavo_engine.model.gguf.names import huggingface_names, stored_tensor
from octavo_engine.model.gguf.parts import read_model
from octavo_engine.model.quantization.gguf import FORMATS, GGUFBlocks
from octavo_engine.model.quantization.module_rules import Quantization, Rule
from octavo_engine.model.quantization.registry import GGUF
from octavo_engine.model.quantization.unquantized import UNQUANTIZED
from octavo_engine.model.source import ModelFiles
from octavo_engine.model.spec import ModelSpec, MoESpec

_ROLES = (
    *("query", "query_up", "key", "value", "output", "output_gate"),
    *("gate", "up", "down", "shared_gate", "shared_up", "shared_down", "conv_input", "conv_output"),
)
"""The roles of the linear layers in files of the supported architectures."""


def quantized(files: ModelFiles, spec: ModelSpec, name: str | None) -> ModelSpec:
    """Return `spec` with the scheme of --quantization: `gguf` keeps the file's blocks; others are `quantized_online`'s.

    ConfigurationError if `gguf` is given for files that are not GGUF files, or that have no quantized blocks.
    """
    if name != GGUF:
        return quantized_online(spec, name)
    if files.gguf is None:
        raise ConfigurationError(
            f"--quantization {name}: is for .gguf files, and {files.name} is none; omit the flag to use the "
            "weights as they are stored"
        )
    blocks = stored_blocks(files, spec)
    if blocks is None:
        raise ConfigurationError(
            f"--quantization {name}: {files.gguf} has no linear layers in {', '.join(FORMATS)}; omit the flag"
        )
    return replace(spec, quantization=blocks)


def stored_blocks(files: ModelFiles, spec: ModelSpec) -> Quantization | None:
    """Return the quantization of the linear layers whose blocks can stay as stored; None: there are none."""
    if files.gguf is None:
        return None
    file = read_model(files.gguf)
    modules = {spec.names.of_layer(role, layer) for layer in range(spec.num_layers) for role in _ROLES}
    rules = _rules(file, spec, modules)
    kept = _rules(file, spec, {spec.names.embedding, spec.names.head, spec.names.per_layer_embedding, *_experts(spec)})
    return Quantization(UNQUANTIZED, rules, kept=kept) if rules else None


def _experts(spec: ModelSpec) -> Iterator[str]:
    """Yield the names of the projections of all experts."""
    for index, layer in enumerate(spec.layers):
        count = max((part.num_experts for part in layer.feed_forwards if isinstance(part, MoESpec)), default=0)
        for role in ("expert_gate", "expert_up", "expert_down") if count else ():
            name = spec.names.of_layer(role, index)
            yield from (name.replace("{expert}", str(expert)) for expert in range(count))


def _rules(file: GGUFFile, spec: ModelSpec, modules: Iterable[str]) -> tuple[Rule, ...]:
    """Return a rule for each block type that some of `modules` have in the file."""
    names: dict[str, set[str]] = {}
    for stored, module in huggingface_names(file, spec.num_layers, modules).items():
        tensor = stored_tensor(file, f"{stored.removesuffix('.weight')}.weight")
        if tensor is not None and tensor.type_name in FORMATS:
            names.setdefault(tensor.type_name, set()).add(module)
    return tuple(Rule(method=GGUFBlocks(kind), names=frozenset(found)) for kind, found in sorted(names.items()))
