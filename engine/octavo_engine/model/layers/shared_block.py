"""Attention and a feed-forward before a layer's mixer, with weights that several layers share (arXiv 2411.15242)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from octavo_engine.attention.context import StepContext
from octavo_engine.attention.rope import Rope
from octavo_engine.model.checkpoint.tensors import CheckpointTensor, unsharded
from octavo_engine.model.layers.attention.grouped_query_attention import Attention
from octavo_engine.model.layers.feed_forward.mlp import MLP
from octavo_engine.model.layers.linear import Linear
from octavo_engine.model.layers.norms.norm import Norm
from octavo_engine.model.layers.options import LayerOptions
from octavo_engine.model.layers.residual import summed
from octavo_engine.model.spec import SharedBlockSpec

_FLOAT32_BYTES = 4


class SharedBlock(nn.Module):
    """A block of shared weights; its output projection and the adapters beside its weights are the layer's own."""

    def __init__(
        self,
        spec: SharedBlockSpec,
        hidden_size: int,
        layer: int,
        options: LayerOptions,
    ) -> None:
        super().__init__()
        self.spec, self.layer, self.options, self.hidden_size = spec, layer, options, hidden_size
        own = _names_in_block(options, layer)
        self.attention = Attention(spec.attention, 2 * hidden_size, layer, own, output_size=hidden_size)
        self.mlp = MLP(spec.mlp, hidden_size, layer, own)
        self.before_attention = Norm(2 * hidden_size, spec.norm, options)
        self.before_mlp = Norm(hidden_size, spec.norm, options)
        hidden = unsharded(hidden_size)
        self.output = Linear(hidden, (hidden,), bias=False, options=options)

    def share(self, other: SharedBlock) -> None:
        """Take the weights of another layer's block in place of its own."""
        self.attention.qkv, self.attention.output = other.attention.qkv, other.attention.output
        self.mlp.gate_up, self.mlp.down = other.mlp.gate_up, other.mlp.down
        self.before_attention, self.before_mlp = other.before_attention, other.before_mlp

    def forward(self, x: Tensor, rope: Rope | None, context: StepContext) -> Tensor:
        """Return what is added to x [T, hidden] before the mixer, [T, hidden]."""
        if context.embedded is None:
            raise ValueError("layers with a shared block read the tokens' embeddings")
        both = cast("Tensor", self.before_attention(torch.cat((x, context.embedded), dim=-1))[0])
        attended = summed(self.attention(both, None, rope, context))
        fed = summed(self.mlp(cast("Tensor", self.before_mlp(attended)[0]), None))
        product: Tensor = self.output(fed)
        return product

    def tensors(self) -> Iterator[CheckpointTensor]:
        """Yield the layer's tensors in a checkpoint; shared ones belong to another layer."""
        names, layer = self.options.names, self.layer
        if self.spec.weights_of_layer is None:
            yield from self.attention.tensors()
            yield from self.mlp.tensors()
            block = names.of_layer("shared_block", layer)
            yield from self.before_attention.tensors(f"{block}.input_layernorm")
            yield from self.before_mlp.tensors(f"{block}.pre_ff_layernorm")
        adapters = names.of_layer("adapters", layer)
        if self.attention.adapters is not None:
            yield from self.attention.adapters.tensors(*(f"{adapters}.{part}" for part in ("query", "key", "value")))
        if self.mlp.adapters is not None:
            yield from self.mlp.adapters.tensors(f"{adapters}.gate_up")
        yield from self.output.tensors(names.of_layer("block_output", layer))

    def step_bytes(self) -> int:
        """Return an upper bound of the bytes that one token needs in this layer during a step, its input included."""
        hidden, size = self.hidden_size, self.options.dtype.itemsize
        norm = 2 * hidden * (2 * size + 3 * _FLOAT32_BYTES)
        return 6 * hidden * size + max(norm, self.attention.step_bytes(), self.mlp.step_bytes())


def _names_in_block(options: LayerOptions, layer: int) -> LayerOptions:
    """Return `options` with the names that attention and feed-forward have in a block."""
    block = options.names.of_layer("shared_block", layer)
    attention, mlp = f"{block}.self_attn", f"{block}.feed_forward"
    names = replace(
        options.names,
        attention=attention,
        query=f"{attention}.q_proj",
        key=f"{attention}.k_proj",
        value=f"{attention}.v_proj",
        output=f"{attention}.o_proj",
        gate=options.names.of_layer("block_gate", layer),
        up=options.names.of_layer("block_up", layer),
        down=f"{mlp}.down_proj",
    )
    return replace(options, names=names)
