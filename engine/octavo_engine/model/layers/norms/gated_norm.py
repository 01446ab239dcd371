"""The norm between Mamba-2's state space model and its last projection, around a gate."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from octavo_engine.model.checkpoint.tensors import CheckpointTensor, plain
from octavo_engine.model.layers.options import LayerOptions
from octavo_engine.model.quantization.unquantized import parameter
from octavo_engine.model.spec import GatedNormSpec, Mamba2Spec
from octavo_engine.model.tensor_parallel.shard import span


class GatedNorm(nn.Module):
    """Root mean square normalisation (arXiv 1910.07467) over each group of heads; a rank may have a part of a group."""

    def __init__(self, spec: GatedNormSpec, mixer: Mamba2Spec, options: LayerOptions) -> None:
        super().__init__()
        self.spec, self.options = spec, options
        shard, per_group = options.ranks.shard, mixer.num_heads // mixer.num_groups * mixer.head_dim
        self.inner = span(shard.heads(mixer), mixer.num_heads).times(mixer.head_dim)
        self.groups = span(shard.kv_heads(mixer), mixer.num_groups)
        self.group_size = per_group
        self.weight = parameter(self.inner.size, dtype=options.dtype, device=options.device)

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        """Return x [T, heads * head size], float32, normalised and times silu(gate), with `gate` of the same shape."""
        factor = F.silu(gate.float())
        if self.spec.before_gate:
            return self._normalised(x) * self.weight.float() * factor
        return self.weight * self._normalised(x * factor).to(gate.dtype)

    def _normalised(self, x: Tensor) -> Tensor:
        grouped = x.view(len(x), self.groups.size, -1)
        squares = self._summed(grouped.square().sum(-1))
        return (grouped * torch.rsqrt(squares / self.group_size + self.spec.eps)[..., None]).view(x.shape)

    def _summed(self, squares: Tensor) -> Tensor:
        """Return the sums [T, groups] over this rank's heads and those of other ranks in the same groups."""
        ranks = self.options.ranks
        if ranks.shard.size <= self.groups.total:  # ranks have whole groups
            return squares
        each = squares.new_zeros(len(squares), self.groups.total)
        each[:, self.groups.slice] = squares
        return ranks.all_reduce(each)[:, self.groups.slice]

    def tensors(self, name: str) -> Iterator[CheckpointTensor]:
        """Yield the layer's tensors in a checkpoint."""
        yield plain(f"{name}.weight", self.weight, self.inner)
