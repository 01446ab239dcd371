"""The paged cache of all layers on the device, and its overflow, the swap space in CPU memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from octavo_engine.attention.backend import AttentionBackend, KVGroupSpec, LayerCache


@dataclass(frozen=True, slots=True)
class KVCache:
    """Keys and values by layer; the first dimension of every tensor is the block.

    `swap` has the same layers with blocks of the same layout in CPU memory, pinned where the device is a GPU; empty
    without swap space.
    """

    groups: tuple[KVGroupSpec, ...]
    block_size: int
    layers: Mapping[int, LayerCache]
    swap: Mapping[int, LayerCache]

    @property
    def group_of_layer(self) -> tuple[int, ...]:
        """The index of each layer's group."""
        owner = {layer: index for index, group in enumerate(self.groups) for layer in group.layers}
        return tuple(owner[layer] for layer in sorted(owner))

    def scaled(self, scales: Mapping[int, tuple[float, float]]) -> KVCache:
        """The same cache, of whose layers one number of the keys, and of the values, is worth so much."""
        layers = {
            layer: replace(cache, key_scale=scales[layer][0], value_scale=scales[layer][1])
            for layer, cache in self.layers.items()
        }
        return replace(self, layers=layers)

    def tensors(self, group: int, *, swap: bool = False) -> list[Tensor]:
        """Keys and values of all layers of `group`, always in the same order."""
        layers = self.swap if swap else self.layers
        found = []
        for layer in self.groups[group].layers:
            cache = layers[layer]
            found += [cache.key] if cache.latent is not None else [cache.key, cache.value]
        return found


def allocate_cache(
    backend: AttentionBackend,
    groups: Sequence[KVGroupSpec],
    *,
    num_blocks: Sequence[int],
    swap_blocks: Sequence[int],
    block_size: int,
    dtype: torch.dtype,
    device: torch.device,
) -> KVCache:
    """A cache and a swap space of so many blocks of each group."""
    layers: dict[int, LayerCache] = {}
    swap: dict[int, LayerCache] = {}
    for group, blocks, others in zip(groups, num_blocks, swap_blocks, strict=True):
        cached = backend.allocate(group, blocks, block_size, dtype, device)
        layers |= cached
        if others:
            swap |= {layer: _in_cpu_memory(cache, others) for layer, cache in cached.items()}
    return KVCache(tuple(groups), block_size, layers, swap)


def _in_cpu_memory(cache: LayerCache, num_blocks: int) -> LayerCache:
    def like(tensor: Tensor) -> Tensor:
        return torch.empty((num_blocks, *tensor.shape[1:]), dtype=tensor.dtype, pin_memory=tensor.is_cuda)

    key = like(cache.key)
    return LayerCache(key, key if cache.latent is not None else like(cache.value), latent=cache.latent)
