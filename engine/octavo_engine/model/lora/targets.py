"""Finds the linear layers of a decoder that an adapter's modules change, and which of their rows and columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from octavo_engine.model.checkpoint.names import QKVLayout, TensorNames
from octavo_engine.model.decoder import Decoder
from octavo_engine.model.gguf.architecture import GGUFArchitecture
from octavo_engine.model.layers.attention.grouped_query_attention import Attention
from octavo_engine.model.layers.attention.latent_attention import LatentAttention
from octavo_engine.model.layers.linear import Linear
from octavo_engine.model.quantization.linear_method import Projection


@dataclass(frozen=True, slots=True)
class ModuleShape:
    """The unsharded weight [rows, columns] of a linear layer as a checkpoint has it."""

    rows: int
    columns: int
    experts: int = 1
    """The number of layers of this shape whose A and B are in one tensor each."""


class Target(Protocol):
    """A layer that an adapter may change."""

    @property
    def shape(self) -> ModuleShape:
        """The shape of the unsharded weight."""

    @property
    def parts(self) -> Sequence[int]:
        """The rows of each projection of this rank's layer."""

    def put(self, slot: int, a: Tensor, b: Tensor, begin: int) -> None:
        """Put this device's columns of A and rows of B, which is scaled, into a slot: the ranks from `begin` on."""


@dataclass(frozen=True, slots=True)
class LinearTarget:
    """A linear layer of a checkpoint: all or some projections of one of the decoder's linears, in the order of its
    rows."""

    linear: Linear
    projections: tuple[Projection, ...]

    @property
    def shape(self) -> ModuleShape:
        """The shape of the unsharded weight."""
        rows = sum(projection.stored_rows.total for projection in self.projections)
        return ModuleShape(rows, self.linear.columns.total)

    @property
    def parts(self) -> Sequence[int]:
        """The rows of each projection of this rank's layer."""
        return self.linear.parts

    def put(self, slot: int, a: Tensor, b: Tensor, begin: int) -> None:
        """Put this device's columns of A and rows of B, in the order of the projections' rows, into a slot."""
        layer = self.linear.lora
        if layer is None:
            raise RuntimeError(f"{self.projections[0].name} has no slots")
        a, first = a[:, self.linear.columns.slice], 0
        for projection in self.projections:
            layer.put_a(slot, projection.index, a, begin)
            stored = projection.stored_rows
            own = b[first + stored.start : first + stored.start + stored.size]
            start = projection.rows.start
            rows = projection.rows if projection.order is None else start + projection.order
            layer.put_b(slot, rows if isinstance(rows, slice) else rows.to(layer.b.device), own, begin)
            first += stored.total


@dataclass(frozen=True, slots=True)
class LatentTarget:
    """The projection from a latent to keys and values, which attention absorbs."""

    mixer: LatentAttention

    @property
    def shape(self) -> ModuleShape:
        """The shape of the unsharded weight."""
        spec = self.mixer.spec
        return ModuleShape(self.mixer.heads.total * (spec.plain_dim + spec.value_dim), spec.latent)

    @property
    def parts(self) -> Sequence[int]:
        """The rows of one head's value."""
        return (self.mixer.spec.value_dim,)

    def put(self, slot: int, a: Tensor, b: Tensor, begin: int) -> None:
        """Put A and the rows of B of this device's heads into a slot."""
        heads, lora = self.mixer.heads, self.mixer.lora
        if lora is None:
            raise RuntimeError("latent attention has no slots")
        lora.put(slot, a, b.reshape(heads.total, -1, b.shape[1])[heads.slice], begin)


@dataclass(frozen=True, slots=True)
class TargetChoice:
    """The layers that adapters may change on a device."""

    targets: Mapping[str, Target]
    left_out: Mapping[str, str]
    """All other layers, with the reasons why adapters cannot change them."""


def linear_targets(decoder: Decoder, file: GGUFArchitecture | None) -> dict[str, LinearTarget]:
    """Return each linear layer that may have an adapter, without experts, by the checkpoint's name.

    `file`: the architecture of the GGUF file that the weights come from, if they do.
    """
    for _ in decoder.tensors():  # this sets the names of linear layers
        pass
    attentions = {id(mixer.qkv): mixer for mixer in decoder.attentions() if isinstance(mixer, Attention)}
    together: dict[str, tuple[Linear, list[Projection]]] = {}
    for linear in decoder.linears():
        mixer = attentions.get(id(linear))
        own = linear.projections(linear.names) if file is None or mixer is None else _as_adapters(mixer, file)
        for projection in own if linear.names else ():
            together.setdefault(projection.name, (linear, []))[1].append(projection)
    targets = {name: LinearTarget(linear, tuple(found)) for name, (linear, found) in together.items()}
    for name, parts in separate_modules(targets, decoder.spec.names).items():
        pairs = zip(parts, targets[name].projections, strict=True)
        targets |= {part: LinearTarget(targets[name].linear, (projection,)) for part, projection in pairs}
    return targets


def separate_modules(names: Iterable[str], of_model: TensorNames) -> dict[str, list[str]]:
    """Return the names of transformers' modules for each of `names` that the checkpoint has as one tensor."""
    return {
        name: [name.removesuffix(end) + part for part in parts]
        for name in names
        for end, parts in of_model.separate
        if name.endswith(end)
    }


def _as_adapters(mixer: Attention, file: GGUFArchitecture) -> Iterator[Projection]:
    """Yield the projections of query, key and value as adapters have their rows.

    Adapters have those of Hugging Face's checkpoint, which a GGUF file may have in another order.
    """
    linear, half = mixer.qkv, mixer.spec.head_dim // 2
    layout = QKVLayout(groups=mixer.kv_heads.total) if file.ungroups_qkv else None
    for projection in linear.projections(linear.names, layout):
        if not file.interleaves_rope:
            yield projection
        elif mixer.spec.rope is None and mixer.roles[projection.index] != "value":  # in memory as in the file
            pairs = torch.arange(projection.stored_rows.size, device="cpu").view(-1, half, 2)
            yield replace(projection, order=pairs.mT.flatten())
        else:
            yield replace(projection, order=None)


def latent_targets(decoder: Decoder) -> dict[str, LatentTarget]:
    """Return the projections that latent attention absorbs, by the checkpoint's names."""
    mixers = (mixer for mixer in decoder.attentions() if isinstance(mixer, LatentAttention))
    return {mixer.options.names.of_layer("latent_up", mixer.layer): LatentTarget(mixer) for mixer in mixers}
