"""Computes all layers of a decoder in one call of the C kernels, if these support every value of the layers' spec."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from octavo_engine.attention.context import StepContext
from octavo_engine.attention.cpu import CPUAttention
from octavo_engine.kernels.cpu.layers import CPULayers
from octavo_engine.kernels.cpu.library import CPUKernels, packed_words
from octavo_engine.model.layers.operations.crossovers import Crossovers
from octavo_engine.model.layers.operations.run_layers import Layer, Ropes, one_by_one
from octavo_engine.model.quantization.dequantized import Dequantized
from octavo_engine.model.quantization.gguf import GGUFBlocks
from octavo_engine.model.quantization.grouped import Grouped
from octavo_engine.model.quantization.int8 import INT8
from octavo_engine.model.quantization.module_rules import Quantization
from octavo_engine.model.quantization.unquantized import Unquantized
from octavo_engine.model.spec import AttentionSpec, HeadSpec, LayerNorms, LayerSpec, MLPSpec, ModelSpec, NormSpec

_KNOWN_METHODS = (Unquantized, Dequantized, Grouped, INT8, GGUFBlocks)
"""The linear methods that the kernels support; each weight says whether they support its codes, too."""
_BFLOAT16_BYTES = 2
_WORD_BYTES = 4


def kernels_know(spec: ModelSpec) -> bool:
    """Return True if the kernels compute all that the layers of `spec` ask for: layers of one shape, with one RoPE.

    Layers are compared with those that the kernels know, so a field that is added to a spec later, or a new value,
    makes this False.
    """
    mixer, mlp = spec.layers[0].mixer, spec.layers[0].feed_forward
    if not isinstance(mixer, AttentionSpec) or not isinstance(mlp, MLPSpec):
        return False
    if spec.norm is None or not _knows_methods(spec.quantization):
        return False
    norm = NormSpec(spec.norm.eps)
    return all(
        isinstance(layer.mixer, AttentionSpec)
        and layer
        == LayerSpec(
            mixer=AttentionSpec(
                num_heads=mixer.num_heads,
                num_kv_heads=mixer.num_kv_heads,
                head_dim=mixer.head_dim,
                scale=mixer.scale,
                rope=mixer.rope,
                qkv_bias=layer.mixer.qkv_bias,
                output_bias=layer.mixer.output_bias,
                window=layer.mixer.window,
            ),
            feed_forward=MLPSpec(intermediate_size=mlp.intermediate_size, bias=mlp.bias, output_bias=mlp.output_bias),
            norms=LayerNorms(before_mixer=norm, before_feed_forward=norm),
        )
        for layer in spec.layers
    )


def kernels_know_ends(spec: ModelSpec) -> bool:
    """Return True if tokens' vectors are the first layer's input, and logits the head's product with the last norm.

    As in `kernels_know`, a field that is added later, or a new value, makes this False.
    """
    if spec.norm is None or spec.head is None:
        return False
    free = ("architecture", "hidden_size", "vocab_size", "max_position", "dtype", "eos_token_ids", "layers")
    loading = ("unread_embeddings", "names", "stored_names", "quantization")
    fields = {name: getattr(spec, name) for name in (*free, *loading)}
    norm = NormSpec(spec.norm.eps)
    same = norm == spec.layers[0].norms.before_mixer
    return same and spec == ModelSpec(**fields, norm=norm, head=HeadSpec(tied=spec.head.tied))


def _knows_methods(quantization: Quantization | None) -> bool:
    return quantization is None or all(isinstance(method, _KNOWN_METHODS) for method in quantization.methods)


def fused_bytes(spec: ModelSpec, tokens: int) -> int:
    """Return the bytes of a step of `tokens` in which the kernels compute all layers in one call, with plain weights.

    They are the residual stream, the results of one part of a layer, and the input of a product as tiles read it; or,
    after the layers, the hidden states of prompts that are read. Attention's scratch memory is not among them.
    """
    mixer, mlp, hidden = spec.layers[0].mixer, spec.layers[0].feed_forward, spec.hidden_size
    if not (isinstance(mixer, AttentionSpec) and isinstance(mlp, MLPSpec)):
        raise ValueError("the kernels do not compute such layers")
    heads = 2 * (mixer.num_heads + mixer.num_kv_heads) * mixer.head_dim
    widest = max(hidden, mixer.num_heads * mixer.head_dim, mlp.intermediate_size)
    each = 2 * hidden + max(heads, mlp.intermediate_size)
    read = 5 * hidden  # the stream, its rows that are read, those normalised, and these in float32
    return tokens * max(each, read) * _BFLOAT16_BYTES + packed_words(tokens, widest) * _WORD_BYTES


class FusedLayers:
    """A runner of layers in bfloat16: few tokens in one call of the kernels, all others layer by layer.

    Its results are the same bits as those of the same kernels called one by one.
    """

    def __init__(
        self,
        kernels: CPUKernels,
        eps: float,
        scale: float,
        crossovers: Crossovers,
        most_tokens: int | None = None,
    ) -> None:
        """Describe layers of norms with `eps` and attention with `scale`, on one rank.

        They compute at most `most_tokens` tokens; None: any number. `crossovers` decide whether codes
        are multiplied as they are.
        """
        self.kernels = kernels
        self._eps, self._scale, self._most_tokens = eps, scale, most_tokens
        self._crossovers = crossovers
        self._layers: CPULayers | None = None
        self._caches: object = None
        self._has_adapters = False

    @property
    def fuses_any_number(self) -> bool:
        """True if steps of any number of tokens are computed in one call, where weights are plain."""
        return self._most_tokens is None

    def __call__(self, layers: Sequence[Layer], x: Tensor, ropes: Ropes, context: StepContext) -> Tensor:
        """Run x [T, hidden] through all layers, in place if they are computed in one call."""
        rope, fused = ropes[0], self.described(layers, context, len(x))
        if rope is None or fused is None:
            return one_by_one(layers, x, ropes, context)
        return fused(x, rope.cos, rope.sin, context.metadata, context.adapter_slots)

    def described(self, layers: Sequence[Layer], context: StepContext, tokens: int) -> CPULayers | None:
        """Return the layers as the kernels read them; None if these do not compute so many tokens in one call."""
        few = tokens > 0 and (self._most_tokens is None or tokens <= self._most_tokens)
        if not few or not isinstance(context.backend, CPUAttention):
            return None
        fused = self._for(layers, context)
        return None if fused is None or (fused.quantized and not self._multiplies_codes(fused, tokens)) else fused

    def _multiplies_codes(self, fused: CPULayers, tokens: int) -> bool:
        return self._crossovers.multiplies_codes(tokens, interleaved=fused.interleaved)

    def _for(self, layers: Sequence[Layer], context: StepContext) -> CPULayers | None:
        """Return layers and caches as the kernels read them, described anew if the caches have changed.

        None: the kernels do not support some weight.
        """
        if self._caches is not context.caches or self._lacks_adapters(context):
            self._layers = self._new_description(layers, context)
            self._caches = context.caches
        return self._layers

    def _new_description(self, layers: Sequence[Layer], context: StepContext) -> CPULayers | None:
        weights = [known for known in (layer.weights() for layer in layers) if known is not None]
        if len(weights) < len(layers):
            return None
        caches = [context.caches[layer] for layer in range(len(layers))]
        pairs = [(cache.key, cache.value) for cache in caches]
        groups = context.group_of_layer
        adapters = [each for each in (layer.adapters() for layer in layers) if each is not None]
        self._has_adapters = bool(adapters)
        return CPULayers(self.kernels, weights, pairs, groups, adapters, eps=self._eps, scale=self._scale)

    def _lacks_adapters(self, context: StepContext) -> bool:
        """Return True if the layers were described before they had slots for adapters."""
        return context.adapter_slots is not None and not self._has_adapters
