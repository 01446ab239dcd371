"""Finds the linear layers of a decoder that an adapter's modules belong to, and their rows and columns in those."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace

from octavo_engine.errors import ModelLoadError
from octavo_engine.model.decoder import Decoder
from octavo_engine.model.layers.linear import Linear
from octavo_engine.model.layers.moe import MoE
from octavo_engine.model.names import StoredNames
from octavo_engine.model.quantization.linear_method import Projection

_WRAPPERS = ("base_model.model.", "base_model.")
"""The prefixes that PEFT puts before the names of a model's modules."""


@dataclass(frozen=True, slots=True)
class ModuleShape:
    """The unsharded weight [rows, columns] of a linear layer as a checkpoint has it."""

    rows: int
    columns: int


@dataclass(frozen=True, slots=True)
class Target:
    """A linear layer as a checkpoint has it: all or some projections of one of ours, in the order of its rows."""

    linear: Linear
    projections: tuple[Projection, ...]

    @property
    def shape(self) -> ModuleShape:
        """The shape of the unsharded weight."""
        rows = sum(projection.stored_rows.total for projection in self.projections)
        return ModuleShape(rows, self.linear.columns.total)


@dataclass(frozen=True, slots=True)
class ModuleNames:
    """The modules that may have adapters, found by what PEFT calls them."""

    shapes: Mapping[str, ModuleShape]
    stored: StoredNames
    refused: Mapping[str, str]
    """The reasons why other modules may not have adapters, by what their names end with or contain."""

    def find(self, name: str) -> str:
        """The module of a name in an adapter's file; ModelLoadError says why there is none."""
        prefix = next((prefix for prefix in _WRAPPERS if name.startswith(prefix)), "")
        bare = name.removeprefix(prefix)
        text = bare.replace("model.language_model.", "model.").removeprefix("language_model.")
        for candidate in (bare, self.stored.own(bare), text, self.stored.own(text)):
            if candidate is not None and candidate in self.shapes:
                return candidate
        for part, reason in self.refused.items():
            if bare.endswith(part) or f"{part}." in bare:
                raise ModelLoadError(f"{bare}: {reason}")
        near = difflib.get_close_matches(bare, list(self.shapes), 1)
        hint = f" (the nearest is {near[0]})" if near else ""
        raise ModelLoadError(f"{bare}: the model has no such linear layer{hint}: is the adapter made for this model?")


def find_targets(decoder: Decoder, *, gguf: bool) -> dict[str, Target]:
    """Each linear layer that may have an adapter, by the checkpoint's name.

    `gguf`: the checkpoint is a file of llama.cpp's, which may hold the rows of query and key in an order of its own.
    Adapters have those of Hugging Face's checkpoint of the same model.
    """
    for _ in decoder.tensors():  # in which linear layers learn their names
        pass
    barred = {id(mixture.router) for mixture in decoder.mixtures() if mixture.spec.router.in_float32}
    together: dict[str, tuple[Linear, list[Projection]]] = {}
    for linear in decoder.linears():
        if not linear.names or id(linear) in barred:
            continue
        for projection in linear.projections(linear.names):
            own = replace(projection, order=None) if gguf else projection
            together.setdefault(projection.name, (linear, []))[1].append(own)
    return {name: Target(linear, tuple(found)) for name, (linear, found) in together.items()}


def module_names(decoder: Decoder, targets: Mapping[str, Target]) -> ModuleNames:
    """The linear layers that an adapter for this decoder may name."""
    names = decoder.spec.names
    refused = {
        names.head.rpartition(".")[2]: "adapters of the head are not supported",
        names.embedding.rpartition(".")[2]: "adapters of embeddings are not supported",
        "lm_head": "adapters of the head are not supported",
        "experts": "experts cannot have adapters yet",
        names.latent_up.rpartition(".")[2]: "latent attention has absorbed this projection: it cannot have adapters",
    }
    if any(mixture.spec.router.in_float32 for mixture in _mixtures(decoder)):
        refused[names.router.rpartition(".")[2]] = "a router that is computed in float32 cannot have adapters"
    return ModuleNames({name: target.shape for name, target in targets.items()}, decoder.spec.stored_names, refused)


def _mixtures(decoder: Decoder) -> list[MoE]:
    return decoder.mixtures()
