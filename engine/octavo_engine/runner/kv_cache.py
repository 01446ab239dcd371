"""The paged KV cache of all layers on the device, and the swap space in CPU memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from octavo_engine.attention.backend import AttentionBackend, KVGroupSpec, LayerCache
from octavo_engine.attention.states import allocate_states
from octavo_engine.attention.token_rows import allocate_rows


@dataclass(frozen=True, slots=True)
class KVCache:
    """The tensors of keys and values, states and rows of all layers; every tensor's first dimension is the block.

    The swapped ones are the same layers' blocks in CPU memory, pinned if the device is a GPU; empty without swap space.
    """

    groups: tuple[KVGroupSpec, ...]
    block_size: int
    layers: Mapping[int, LayerCache]
    swap: Mapping[int, LayerCache]
    states: Mapping[int, tuple[Tensor, ...]] = field(default_factory=dict)
    """The tensors of each layer that keeps a state; the first dimension is the block, with one more for padding."""
    swapped_states: Mapping[int, tuple[Tensor, ...]] = field(default_factory=dict)
    rows: Mapping[tuple[int, str], Tensor] = field(default_factory=dict)
    """The rows that layers keep for attention of their own, without a backend, by layer and name."""
    swapped_rows: Mapping[tuple[int, str], Tensor] = field(default_factory=dict)

    @property
    def group_of_layer(self) -> tuple[int, ...]:
        """The index of the group that has each layer's keys and values; -1 for layers without any."""
        owner = group_indices(self.groups, states=False)
        return tuple(owner.get(layer, -1) for layer in range(max(owner, default=-1) + 1))

    @property
    def row_groups(self) -> Mapping[tuple[int, str], int]:
        """The index of the KV group that holds the rows of a name, by layer and name."""
        return row_group_indices(self.groups)

    @property
    def state_groups(self) -> Mapping[int, int]:
        """The index of the KV group that holds a layer's states, by layer."""
        return group_indices(self.groups, states=True)

    def scaled(self, scales: Mapping[int, tuple[float, float]]) -> KVCache:
        """Return a cache over the same memory whose layers have these scales of keys and values (FP8)."""
        layers = {
            layer: replace(cache, key_scale=scales[layer][0], value_scale=scales[layer][1])
            for layer, cache in self.layers.items()
        }
        return replace(self, layers=layers)

    def tensors(self, group: int, *, swap: bool = False) -> list[Tensor]:
        """Return the tensors (keys and values, states or rows) of all layers of `group`, always in the same order."""
        spec = self.groups[group]
        if spec.states:
            states = self.swapped_states if swap else self.states
            return [tensor for layer in spec.layers for tensor in states[layer]]
        if spec.rows:
            rows = self.swapped_rows if swap else self.rows
            return [rows[layer, row.name] for layer in spec.layers for row in spec.rows]
        layers = self.swap if swap else self.layers
        found = []
        for layer in self.groups[group].layers:
            cache = layers[layer]
            found += [cache.key] if cache.latent is not None else [cache.key, cache.value]
        return found


def group_indices(groups: Sequence[KVGroupSpec], *, states: bool) -> dict[int, int]:
    """Map each layer to the index of its KV group, among groups of states or among those of backends.

    A layer may be in one group of each kind.
    """
    chosen = [(index, group) for index, group in enumerate(groups) if (group.states if states else group.for_backend)]
    return {layer: index for index, group in chosen for layer in group.layers}


def row_group_indices(groups: Sequence[KVGroupSpec]) -> dict[tuple[int, str], int]:
    """Map each layer and name of rows to the index of their KV group."""
    return {
        (layer, row.name): index for index, group in enumerate(groups) for layer in group.layers for row in group.rows
    }


def allocate_cache(
    backend: AttentionBackend,
    groups: Sequence[KVGroupSpec],
    *,
    num_blocks: Sequence[int],
    swap_blocks: Sequence[int],
    block_size: int,
    dtype: torch.dtype,
    state_dtype: torch.dtype | None = None,
    device: torch.device,
) -> KVCache:
    """Allocate a cache and a swap space of so many blocks for each group.

    `state_dtype` is the dtype of states that do not name one; None means `dtype`.
    """
    layers: dict[int, LayerCache] = {}
    swap: dict[int, LayerCache] = {}
    states: dict[int, tuple[Tensor, ...]] = {}
    swapped: dict[int, tuple[Tensor, ...]] = {}
    rows: dict[tuple[int, str], Tensor] = {}
    swapped_rows: dict[tuple[int, str], Tensor] = {}
    for group, blocks, others in zip(groups, num_blocks, swap_blocks, strict=True):
        if group.states:
            own = allocate_states(group, blocks, state_dtype or dtype, device)
            states |= own
            if others:
                swapped |= {layer: tuple(_like(tensor, others) for tensor in own[layer]) for layer in own}
            continue
        if group.rows:
            kept = allocate_rows(group, blocks, block_size, dtype, device)
            rows |= kept
            swapped_rows |= {place: _like(tensor, others) for place, tensor in kept.items()} if others else {}
            continue
        cached = backend.allocate(group, blocks, block_size, dtype, device)
        layers |= cached
        if others:
            swap |= {layer: _in_cpu_memory(cache, others) for layer, cache in cached.items()}
    return KVCache(tuple(groups), block_size, layers, swap, states, swapped, rows, swapped_rows)


def _in_cpu_memory(cache: LayerCache, num_blocks: int) -> LayerCache:
    key = _like(cache.key, num_blocks)
    value = key if cache.latent is not None else _like(cache.value, num_blocks)
    return LayerCache(key, value, latent=cache.latent)


def _like(tensor: Tensor, num_blocks: int) -> Tensor:
    """Allocate `num_blocks` blocks of the tensor's shape and type in CPU memory, pinned if the tensor is on a GPU."""
    return torch.empty((num_blocks, *tensor.shape[1:]), dtype=tensor.dtype, pin_memory=tensor.is_cuda)
