"""A router with a latent that one layer hands to the next, and a feed-forward that makes logits of it (Zaya)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import torch.nn.functional as F
from torch import Tensor, nn

from octavo_engine.kernels.fp8_activations import Scaling
from octavo_engine.model.checkpoint.tensors import CheckpointTensor, Span, plain, unsharded
from octavo_engine.model.layers.linear import Linear
from octavo_engine.model.layers.norms.norm import Norm
from octavo_engine.model.layers.options import LayerOptions
from octavo_engine.model.quantization.unquantized import parameter
from octavo_engine.model.spec import LatentRouterSpec


class LatentRouter(nn.Module):
    """Projects a token to a latent, adds the earlier layer's latent, and computes the logits of `count` experts."""

    def __init__(self, spec: LatentRouterSpec, hidden: Span, count: int, options: LayerOptions) -> None:
        super().__init__()
        size, experts = unsharded(spec.size, "router_hidden_size"), unsharded(count)
        self.down = Linear(hidden, (size,), bias=True, options=options)
        self.share = parameter(spec.size, dtype=options.dtype, device=options.device) if spec.carried else None
        self.norm = Norm(spec.size, spec.norm, options)
        self.first, self.second = (Linear(size, (size,), bias=True, options=options) for _ in range(2))
        self.out = Linear(size, (experts,), bias=False, options=options)

    @property
    def input_scaling(self) -> Scaling | None:
        """How the input is quantized; None: not at all."""
        return self.down.input_scaling

    def forward(self, x: Tensor, latents: list[Tensor]) -> Tensor:
        """Return the logits [T, experts] of x [T, hidden]; `latents` has the earlier layer's [T, size], and gets this
        layer's in its place."""
        latent: Tensor = self.down(x)
        if self.share is not None and latents:
            latent = latent + latents[0] * self.share
        latents[:] = [latent]
        inner = cast("Tensor", self.norm(latent)[0])
        for linear in (self.first, self.second):
            inner = F.gelu(linear(inner))
        logits: Tensor = self.out(inner)
        return logits

    def tensors(self, name: str) -> Iterator[CheckpointTensor]:
        """Yield the tensors of the module `name` in a checkpoint."""
        yield from self.down.tensors(f"{name}.down_proj")
        if self.share is not None:
            yield plain(f"{name}.router_states_scale", self.share, unsharded(len(self.share)))
        yield from self.norm.tensors(f"{name}.router_mlp.norm")
        for part, linear in (("fc1", self.first), ("fc2", self.second), ("out_proj", self.out)):
            yield from linear.tensors(f"{name}.router_mlp.{part}")

    def step_bytes(self) -> int:
        """Return an upper bound of one token's bytes besides its input and its logits."""
        size = self.norm.weight
        return 8 * size.numel() * size.dtype.itemsize + 12 * size.numel()
