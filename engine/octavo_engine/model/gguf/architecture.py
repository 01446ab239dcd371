"""What is particular to the files of one GGUF architecture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from octavo_engine.model.gguf.file import GGUFFile
from octavo_engine.model.gguf.header import Header
from octavo_engine.model.gguf.restored import Array, Restored
from octavo_engine.model.gguf.spec_changes import split_latent_up, ungrouped_qkv, with_ropes
from octavo_engine.model.spec import ModelSpec


def _nothing(_header: Header) -> dict[str, Any]:
    return {}


def _unchanged(spec: ModelSpec) -> ModelSpec:
    return spec


@dataclass(frozen=True, slots=True, kw_only=True)
class GGUFArchitecture:
    """How files of one `general.architecture`, with experts or without, are read."""

    name: str
    model_class: str
    """The name of the model's class in config.json, by which the family is found."""
    experts: bool = False
    other_classes: tuple[str, ...] = ()
    """Further model classes that are converted to the same architecture: computed in the same way, or named by what
    `read` returns."""
    read: Callable[[Header], dict[str, Any]] = _nothing
    """Fields of config.json beside those that all architectures have, or in place of them."""
    change: Callable[[ModelSpec], ModelSpec] = _unchanged
    """Changes the spec where GGUF files store tensors in another way than Hugging Face's checkpoints."""
    restored: Callable[[ModelSpec], Mapping[str, Restored]] = lambda _spec: {}
    """How tensors whose values the file has changed are read, by the endings of their names in checkpoints."""
    made: Callable[[Header], Mapping[str, Array]] = lambda _header: {}
    """Parameters of checkpoints that a file has in another form, such as keys of its header, by their names there;
    float32."""
    made_of: tuple[str, ...] = ()
    """The tensors of the file from which such parameters are made."""
    scales_weights: bool = False
    """Whether weights are multiplied with factors that checkpoints state apart; such a file takes no adapters."""
    rotates_neighbours: bool = False
    """Whether checkpoints rotate neighbouring dimensions; files with M-RoPE's sections have these rows in another
    order, and take no adapters."""
    layers_differ: bool = False
    """Whether `read` reads the numbers of heads and the feed-forward's sizes that layers have of their own; files of
    other architectures whose layers differ are refused."""
    interleaves_rope: bool = False
    """Whether the rows of query and key are permuted, so that rotated pairs lie side by side; in layers without RoPE,
    too."""
    ungroups_qkv: bool = False
    """Whether the file has all rows of query, then of key, then of value, where the checkpoint has the heads of one KV
    head after another's."""

    def of_file(self, spec: ModelSpec, file: GGUFFile) -> ModelSpec:
        """Return `spec` with the changes for a GGUF file."""
        spec = with_ropes(spec, interleaved=True) if self.interleaves_rope else spec
        if any(name.endswith(".attn_k_b.weight") for name in file.tensors):  # older files have it as one tensor
            spec = split_latent_up(spec)
        sections = file.metadata.get(f"{self.name}.rope.dimension_sections")
        # llama.cpp then rotates halves, not neighbours; other architectures it computes as without sections.
        if self.rotates_neighbours and isinstance(sections, list) and any(sections):
            spec = with_ropes(spec, interleaved=False)
        return self.change(ungrouped_qkv(spec) if self.ungroups_qkv else spec)
