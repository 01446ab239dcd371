"""All layers of a decoder by one call of the C kernels, where those compute everything that is in them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from octavo_engine.attention.context import AttentionContext
from octavo_engine.attention.cpu import CPUAttention
from octavo_engine.kernels.cpu.layers import CPULayers
from octavo_engine.kernels.cpu.library import CPUKernels
from octavo_engine.model.layers.run_layers import Layer, Ropes, one_by_one
from octavo_engine.model.spec import ModelSpec


def kernels_know(spec: ModelSpec) -> bool:
    """Whether the kernels compute everything that the layers of `spec` ask for.

    `spec` is compared with what they know, so that a field that is added to it later, or a value that they do not
    know, leaves them.
    """
    known = ModelSpec(
        architecture=spec.architecture,
        num_layers=spec.num_layers,
        hidden_size=spec.hidden_size,
        intermediate_size=spec.intermediate_size,
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        vocab_size=spec.vocab_size,
        max_position=spec.max_position,
        rms_norm_eps=spec.rms_norm_eps,
        rope=spec.rope,
        tie_word_embeddings=spec.tie_word_embeddings,
        attention_bias=spec.attention_bias,
        attention_output_bias=spec.attention_output_bias,
        mlp_bias=spec.mlp_bias,
        mlp_output_bias=spec.mlp_output_bias,
        hidden_act="silu",
        dtype=spec.dtype,
        eos_token_ids=spec.eos_token_ids,
        kv_groups=spec.kv_groups,
    )
    return spec == known


class FusedLayers:
    """A runner of layers in bfloat16: few tokens in one call of the kernels, all others layer by layer.

    Its results are the same bits as those of the same kernels called one by one.
    """

    def __init__(self, kernels: CPUKernels, eps: float, scale: float, most_tokens: int | None = None) -> None:
        """For layers of norms with `eps` and attention with `scale`, all on one rank; None: any number of tokens."""
        self._kernels, self._eps, self._scale, self._most_tokens = kernels, eps, scale, most_tokens
        self._layers: CPULayers | None = None
        self._caches: object = None

    def __call__(self, layers: Sequence[Layer], x: Tensor, ropes: Ropes, attention: AttentionContext) -> Tensor:
        """x [T, hidden] through all layers, in place if it is computed in one call."""
        rope = ropes[0]
        few = len(x) > 0 and (self._most_tokens is None or len(x) <= self._most_tokens)
        if rope is None or not few or not isinstance(attention.backend, CPUAttention):
            return one_by_one(layers, x, ropes, attention)
        return self._for(layers, attention)(x, rope.cos, rope.sin, attention.metadata)

    def _for(self, layers: Sequence[Layer], attention: AttentionContext) -> CPULayers:
        """The layers and the caches as the kernels want them, described anew if the caches are others."""
        if self._layers is None or self._caches is not attention.caches:
            weights = [layer.weights() for layer in layers]
            caches = [attention.caches[layer] for layer in range(len(layers))]
            pairs = [(cache.key, cache.value) for cache in caches]
            groups = attention.group_of_layer
            self._layers = CPULayers(self._kernels, weights, pairs, groups, eps=self._eps, scale=self._scale)
            self._caches = attention.caches
        return self._layers
