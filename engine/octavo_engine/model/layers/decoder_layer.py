"""One decoder layer: a mixer and a feed-forward, with norms where the spec has them, added to the residual stream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn

from octavo_engine.attention.context import StepContext
from octavo_engine.attention.rope import Rope
from octavo_engine.kernels.cpu.layers import LayerAdapters, LayerWeights, LinearWeights
from octavo_engine.kernels.fp8_activations import Quantized
from octavo_engine.model.checkpoint.tensors import CheckpointTensor, plain, unsharded
from octavo_engine.model.layers.affine import AffineSum
from octavo_engine.model.layers.attention.grouped_query_attention import Attention
from octavo_engine.model.layers.experts.moe import MoE
from octavo_engine.model.layers.feed_forward.mlp import MLP
from octavo_engine.model.layers.mixers import Mixing, build_mixer
from octavo_engine.model.layers.norms.norm import Norm
from octavo_engine.model.layers.norms.self_gated_norm import SelfGatedNorm
from octavo_engine.model.layers.options import LayerOptions
from octavo_engine.model.layers.residual import LayerStream, ResidualStream, ResidualSum, ShortcutStream, summed
from octavo_engine.model.layers.residual_streams.alternating_updates import AlternatingUpdates
from octavo_engine.model.layers.residual_streams.hyper_connections import Connections, connections
from octavo_engine.model.layers.residual_streams.laurel import Laurel
from octavo_engine.model.layers.residual_streams.per_layer_input import PerLayerInput
from octavo_engine.model.layers.residual_streams.stacked import Stacked
from octavo_engine.model.layers.shared_block import SharedBlock
from octavo_engine.model.quantization.unquantized import parameter
from octavo_engine.model.spec import LayerSpec, MLPSpec, MoESpec, NormSpec

_FLOAT32_BYTES = 4

Part = Mixing | MLP | MoE


class DecoderLayer(nn.Module):
    """A layer whose parts read the residual stream, normalised or not, and add their results to it."""

    output_scale: Tensor | None

    def __init__(
        self,
        spec: LayerSpec,
        hidden_size: int,
        layer: int,
        options: LayerOptions,
    ) -> None:
        super().__init__()
        self.spec, self.layer, self.options = spec, layer, options
        self.hidden_size = hidden_size
        block = spec.shared_block
        self.block = None if block is None else SharedBlock(block, hidden_size, layer, options)
        self.before_mixer = self._norm(spec.norms.before_mixer)
        self.mixer = build_mixer(spec.mixer, hidden_size, layer, options)
        self.after_mixer = self._norm(spec.norms.after_mixer)
        self.before_feed_forward = self._norm(spec.norms.before_feed_forward)
        self.feed_forward = _feed_forward(spec, hidden_size, layer, options)
        shortcut = spec.shortcut
        self.shortcut = None if shortcut is None else MoE(shortcut, hidden_size, layer, options)
        self.after_feed_forward = self._norm(spec.norms.after_feed_forward)
        extra = spec.per_layer_input
        self.per_layer_input = None if extra is None else PerLayerInput(extra, hidden_size, layer, options)
        laurel, updates = spec.laurel, spec.alternating_updates
        self.laurel = None if laurel is None else Laurel(laurel, hidden_size, layer, options)
        self.updates = None if updates is None else AlternatingUpdates(updates, hidden_size, layer, options)
        self.connections = _connections(spec, hidden_size, options)
        self.stacked = None if spec.stack is None else Stacked(spec.stack, hidden_size, options)
        self.sums = nn.ModuleList(AffineSum(hidden_size, options) for _ in range(2 * spec.affine_sums))
        """The sums of the stream with the mixer's and with the feed-forward's result, if they have weights."""
        self.stream_weights = (
            parameter(2, hidden_size, dtype=options.dtype, device=options.device) if spec.stream_weights else None
        )
        """[2, hidden]: factors of the residual stream before the mixer's and the feed-forward's result is added."""
        scale = torch.empty(1, dtype=options.dtype, device=options.device) if spec.output_scale else None
        self.register_buffer("output_scale", scale, persistent=False)

    def _norm(self, spec: NormSpec | None) -> Norm | None:
        if spec is None or spec.gate_rank is None:
            return None if spec is None else Norm(self.hidden_size, spec, self.options)
        return SelfGatedNorm(self.hidden_size, spec, spec.gate_rank, self.options)

    def forward(self, stream: LayerStream, rope: Rope | None, context: StepContext) -> LayerStream:
        """Return the residual stream [T, hidden] after the layer."""
        if isinstance(stream, ShortcutStream):
            return summed(self._without_shortcut(stream.stream, rope, context)) + stream.later
        if self.shortcut is None:
            return self._without_shortcut(stream, rope, context)
        stream = self._add_mixer(stream, rope, context)
        normed, x = self._input_of(self.before_feed_forward, stream, None, self.spec.norms.stream_scales[1])
        later = summed(self.shortcut(normed, None))
        return ShortcutStream(self._add_feed_forward(normed, x, context), later)

    def _without_shortcut(self, stream: ResidualStream, rope: Rope | None, context: StepContext) -> ResidualStream:
        """Return the stream after the layer without the expert shortcut."""
        if self.updates is not None:
            return self._run_with_updates(self.updates, summed(stream), rope, context)
        if self.connections is not None:
            return self._run_connected(self.connections, summed(stream), rope, context)
        if self.stacked is not None:
            vectors = summed(stream)
            return self.stacked.changed(vectors, summed(self._run_parts(self.stacked.read(vectors), rope, context)))
        stream = self._run_parts(stream, rope, context)
        if self.per_layer_input is not None and context.per_layer_inputs is not None:
            stream = self.per_layer_input(summed(stream), context.per_layer_inputs)
        return stream if self.output_scale is None else summed(stream) * self.output_scale

    def _run_with_updates(
        self, updates: AlternatingUpdates, x: Tensor, rope: Rope | None, context: StepContext
    ) -> Tensor:
        """Return all vectors of each token; the layer's parts read and change one of them (alternating updates)."""
        extra, inputs = self.per_layer_input, context.per_layer_inputs
        if extra is None or inputs is None:
            raise ValueError("layers with alternating updates have an input of their own")

        def compute(vector: Tensor) -> Tensor:
            return summed(self._run_parts(vector, rope, context))

        def addend(vector: Tensor) -> Tensor:
            return extra.addend(vector, inputs)

        updated: Tensor = updates(x, compute, addend)
        return updated

    def _run_connected(self, connections: nn.ModuleList, x: Tensor, rope: Rope | None, context: StepContext) -> Tensor:
        """Return all vectors of each token: each part reads a mixture of them and adds its result to all of them."""

        def mixed(vector: Tensor) -> Tensor:
            mixer = cast("Mixing", self.mixer)
            return summed(mixer(_normalised_input(self.before_mixer, vector, mixer)[0], None, rope, context))

        def fed(vector: Tensor) -> Tensor:
            feed_forward = cast("MLP | MoE", self.feed_forward)
            normed = _normalised_input(self.before_feed_forward, vector, feed_forward)[0]
            return summed(_run_feed_forward(feed_forward, normed, None, context))

        for connected, part in zip(connections, (mixed, fed), strict=True):
            x = connected(x, part)
        return x

    def _run_parts(self, stream: ResidualStream, rope: Rope | None, context: StepContext) -> ResidualStream:
        """Return the residual stream after mixer and feed-forward."""
        if self.spec.parallel:
            return self._run_parallel(stream, rope, context)
        if self.spec.norms.after_adding:
            return self._run_post_norm(summed(stream), rope, context)
        stream = self._add_mixer(stream, rope, context)
        if self.feed_forward is None:
            return stream
        read = self._input_of(self.before_feed_forward, stream, self.feed_forward, self.spec.norms.stream_scales[1])
        return self._add_feed_forward(*read, context)

    def _add_mixer(self, stream: ResidualStream, rope: Rope | None, context: StepContext) -> ResidualStream:
        """Return the residual stream after the mixer."""
        if self.mixer is None:
            return stream
        if self.block is not None:
            x = summed(stream)
            normed = _normalised_input(self.before_mixer, ResidualSum(self.block(x, rope, context), x), self.mixer)[0]
        else:
            normed, x = self._input_of(self.before_mixer, stream, self.mixer, self.spec.norms.stream_scales[0])
            x = x if self.stream_weights is None else x * self.stream_weights[0]
        result = self.mixer(normed, self._residual(self.after_mixer, x), rope, context)
        stream = self._added(result, self.after_mixer, x) if not self.sums else self.sums[0](summed(result), x)
        return stream if self.laurel is None else self.laurel(summed(stream), normed)

    def _add_feed_forward(self, normed: Tensor | Quantized, x: Tensor, context: StepContext) -> ResidualStream:
        """Return x plus the feed-forward's result for its input `normed`."""
        feed_forward, after = cast("MLP | MoE", self.feed_forward), self.after_feed_forward
        x = x if self.stream_weights is None else x * self.stream_weights[1]
        result = _run_feed_forward(feed_forward, normed, self._residual(after, x), context)
        return self._added(result, after, x) if not self.sums else self.sums[1](summed(result), x)

    def _run_post_norm(self, x: Tensor, rope: Rope | None, context: StepContext) -> Tensor:
        """Add each part's result to x, and normalise the sum (post-norm)."""
        if self.mixer is not None:
            x = _normalised(self.after_mixer, summed(self.mixer(x, x, rope, context)))
        if self.feed_forward is None:
            return x
        return _normalised(self.after_feed_forward, summed(self.feed_forward(x, x)))

    def _run_parallel(self, stream: ResidualStream, rope: Rope | None, context: StepContext) -> ResidualStream:
        """Compute both parts from the same x. If the parts share one norm, its output is not quantized for either."""
        shared = self.before_feed_forward is None
        normed, x = _normalised_input(self.before_mixer, stream, None if shared else self.mixer)
        other = normed if shared else _normalised_input(self.before_feed_forward, x, self.feed_forward)[0]
        parts = [] if self.mixer is None else [summed(self.mixer(normed, None, rope, context))]
        if self.feed_forward is not None:
            parts.append(summed(self.feed_forward(other, None)))
        return ResidualSum(self._scaled(sum(parts[1:], parts[0])), x)

    def _input_of(
        self, norm: Norm | None, stream: ResidualStream, part: Part | None, scale: float
    ) -> tuple[Tensor | Quantized, Tensor]:
        """Return a part's input, and the stream that its result is added to."""
        if self.sums:
            x = summed(stream)
            return _normalised_input(norm, x.to(self.options.dtype), part)[0], x
        if not self.spec.norms.into_stream:
            return _normalised_input(norm, stream, None if self.laurel is not None else part)
        normed = cast("Tensor", _normalised_input(norm, stream, None)[0])
        return normed, normed if scale == 1 else normed * scale

    def _residual(self, after: Norm | None, x: Tensor) -> Tensor | None:
        """Return x if a part may add its result to it; None if the result is to be normalised or scaled first."""
        return x if after is None and self.spec.residual_scale == 1 and not self.sums else None

    def _added(self, result: ResidualStream, after: Norm | None, x: Tensor) -> ResidualStream:
        """Return a part's result added to x, unless the part has added it already."""
        if self._residual(after, x) is not None:
            return result
        product = summed(result)
        if after is not None:
            product = cast("Tensor", after(product)[0])
        return ResidualSum(self._scaled(product), x)

    def _scaled(self, x: Tensor) -> Tensor:
        return x if self.spec.residual_scale == 1 else x * self.spec.residual_scale

    def weights(self) -> LayerWeights | None:
        """Return the weights for kernels that compute whole layers; None if they do not support some linear's weight.

        The layer must have norms before both parts and a dense feed-forward.
        """
        mixer, mlp = cast("Attention", self.mixer), cast("MLP", self.feed_forward)
        linears = [each.for_kernels() for each in (mixer.qkv, mixer.output, mlp.gate_up, mlp.down)]
        if any(each is None for each in linears):
            return None
        norms = cast("Norm", self.before_mixer).weight, cast("Norm", self.before_feed_forward).weight
        return LayerWeights(*norms, *cast("list[LinearWeights]", linears))

    def adapters(self) -> LayerAdapters | None:
        """Return the adapters of the layer's linears, for kernels that compute whole layers; None: none are served."""
        mixer, mlp = cast("Attention", self.mixer), cast("MLP", self.feed_forward)
        slots = [each.lora for each in (mixer.qkv, mixer.output, mlp.gate_up, mlp.down)]
        if all(each is None for each in slots):
            return None
        return LayerAdapters(*(None if each is None else each.on_cpu for each in slots))

    def share(self, other: DecoderLayer) -> None:
        """Use the weights of another layer instead of this layer's own."""
        mixer, others = cast("Attention", self.mixer), cast("Attention", other.mixer)
        mixer.qkv, mixer.output, mixer.gate = others.qkv, others.output, others.gate
        self.before_mixer, self.before_feed_forward = other.before_mixer, other.before_feed_forward
        self.after_mixer, self.after_feed_forward = other.after_mixer, other.after_feed_forward
        self.feed_forward, self.stacked = other.feed_forward, other.stacked

    def tensors(self) -> Iterator[CheckpointTensor]:
        """Yield the layer's tensors in a checkpoint; shared ones belong to another layer."""
        if self.spec.weights_of_layer is not None:
            return
        for role in ("before_mixer", "after_mixer", "before_feed_forward", "after_feed_forward"):
            if (norm := getattr(self, role)) is not None:
                yield from norm.tensors(self.options.names.of_layer(role, self.layer))
        for part in (*self._modules_of_parts(), self.updates):
            if part is not None:
                yield from part.tensors()
        if self.connections is not None:
            for role, around in zip(("mixer_connections", "feed_forward_connections"), self.connections, strict=True):
                yield from cast("Connections", around).tensors(self.options.names.of_layer(role, self.layer))
        for role, affine in zip(("mixer_sum", "feed_forward_sum"), self.sums, strict=False):
            yield from cast("AffineSum", affine).tensors(self.options.names.of_layer(role, self.layer))
        if self.stream_weights is not None:
            for role, weights in zip(("mixer_stream", "feed_forward_stream"), self.stream_weights, strict=True):
                yield plain(self.options.names.of_layer(role, self.layer), weights, unsharded(self.hidden_size))
        if self.output_scale is not None:
            yield plain(self.options.names.of_layer("output_scale", self.layer), self.output_scale, unsharded(1))

    def _modules_of_parts(self) -> tuple[Any, ...]:
        """Return the layer's modules that run one after another; None stands for a module that this layer lacks."""
        return self.block, self.mixer, self.feed_forward, self.shortcut, self.per_layer_input, self.laurel

    def sequence_bytes(self) -> int:
        """Return an upper bound of one sequence's bytes besides its tokens: its state while it is computed."""
        return 0 if self.mixer is None else self.mixer.sequence_bytes()

    def step_bytes(self) -> int:
        """Return an upper bound of one token's bytes in this layer during a step, without attention's scratch memory.

        It is the sum of the residual stream before and after a part, the part's result, and the largest part.
        """
        hidden, size = self.hidden_size, self.options.dtype.itemsize
        norm = hidden * size + 3 * hidden * _FLOAT32_BYTES
        norms = (self.before_mixer, self.before_feed_forward)
        norm += max(each.gate_bytes() if isinstance(each, SelfGatedNorm) else 0 for each in norms)
        parts: list[int] = [part.step_bytes() for part in self._modules_of_parts() if part is not None]
        beside = 0 if self.updates is None else self.updates.step_bytes()
        beside += 0 if self.connections is None else cast("Connections", self.connections[0]).step_bytes()
        apart = self.spec.parallel or self.after_mixer is not None or self.spec.residual_scale != 1
        apart |= self.spec.norms.stream_scales != (1, 1) or self.spec.stream_weights or self.spec.affine_sums
        beside += 0 if self.stacked is None else self.stacked.step_bytes()
        beside += 2 * hidden * size  # the result of a shortcut, added after the next layer
        beside += 4 * hidden * _FLOAT32_BYTES if self.spec.affine_sums else 0
        return (3 + 3 * apart) * hidden * size + max((norm, *parts)) + beside


def _connections(spec: LayerSpec, hidden_size: int, options: LayerOptions) -> nn.ModuleList | None:
    """Return the hyper-connections around the mixer and around the feed-forward."""
    if spec.connections is None:
        return None
    return nn.ModuleList(connections(spec.connections, hidden_size, options) for _ in range(2))


def _feed_forward(spec: LayerSpec, hidden_size: int, layer: int, options: LayerOptions) -> MLP | MoE | None:
    match spec.feed_forward:
        case MLPSpec() as mlp:
            return MLP(mlp, hidden_size, layer, options)
        case MoESpec() as moe:
            return MoE(moe, hidden_size, layer, options)
        case None:
            return None


def share_layers(layers: list[DecoderLayer]) -> None:
    """Make each layer that shares another layer's weights use them."""
    for layer in layers:
        if layer.spec.weights_of_layer is not None:
            layer.share(layers[layer.spec.weights_of_layer])


def share_blocks(layers: list[DecoderLayer]) -> bool:
    """Make each block before a mixer use the weights that it shares; return True if the model has such blocks."""
    blocks = [(layer.block, layer.block.spec.weights_of_layer) for layer in layers if layer.block is not None]
    for block, source in blocks:
        other = None if source is None else layers[source].block
        if other is not None:
            block.share(other)
    return bool(blocks)


def _run_feed_forward(
    part: MLP | MoE, normed: Tensor | Quantized, residual: Tensor | None, context: StepContext
) -> ResidualStream:
    """Return a feed-forward's result; a mixture of experts also reads the step's data, as routers may need it."""
    fed: ResidualStream = part(normed, residual, context) if isinstance(part, MoE) else part(normed, residual)
    return fed


def _normalised(norm: Norm | None, x: Tensor) -> Tensor:
    return x if norm is None else cast("Tensor", norm(x)[0])


def _normalised_input(
    norm: Norm | None, stream: ResidualStream, part: Part | None
) -> tuple[Tensor | Quantized, Tensor]:
    """Return a part's input, and the stream that its result is added to."""
    if norm is None:
        x = summed(stream)
        return x, x
    normed: tuple[Tensor | Quantized, Tensor] = norm(stream, None if part is None else part.input_scaling)
    return normed
