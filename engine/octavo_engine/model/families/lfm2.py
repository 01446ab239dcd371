"""LFM2 of Liquid AI (arXiv 2511.23404): Llama with short convolutions in place of attention in most layers, and QK
norm."""

from __future__ import annotations

from typing import Any

from octavo_engine.model.checkpoint.names import TensorNames
from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import AttentionSpec, LayerSpec, MLPSpec, ModelSpec, NormSpec, QKNormSpec, ShortConvSpec

_LAYER = "model.layers.{layer}"
NAMES = TensorNames(
    before_mixer=f"{_LAYER}.operator_norm",
    before_feed_forward=f"{_LAYER}.ffn_norm",
    norm="model.embedding_norm",
    query_norm=f"{_LAYER}.self_attn.q_layernorm",
    key_norm=f"{_LAYER}.self_attn.k_layernorm",
    output=f"{_LAYER}.self_attn.out_proj",
    gate=f"{_LAYER}.feed_forward.w1",
    up=f"{_LAYER}.feed_forward.w3",
    down=f"{_LAYER}.feed_forward.w2",
)


def _attends(fields: Fields) -> list[bool]:
    """Return for each layer whether it has attention."""
    count, kinds = reading.num_layers(fields), fields.values.get("layer_types")
    if kinds is None:
        attending = fields.integers("full_attn_idxs") if fields.has("full_attn_idxs") else range(count)
        return [layer in attending for layer in range(count)]
    if not isinstance(kinds, list) or len(kinds) != count or set(map(str, kinds)) - {"conv", "full_attention"}:
        raise fields.wrong("layer_types", kinds, f"is not {count} times conv or full_attention")
    return [kind == "full_attention" for kind in kinds]


def _intermediate_size(fields: Fields) -> int:
    size = reading.intermediate_size(fields)
    if not fields.boolean("block_auto_adjust_ff_dim", True):
        return size
    multiple = fields.integer("block_multiple_of", 1, 1 << 20)
    size = int(fields.number("block_ffn_dim_multiplier", 1e-3, 1e3) * int(2 * size / 3))
    return -(-size // multiple) * multiple


def norm(fields: Fields) -> NormSpec:
    """Return the spec of every norm."""
    return NormSpec(fields.number("norm_eps", 0, 1))


def short_conv(fields: Fields) -> ShortConvSpec:
    """Return the mixer of layers without attention."""
    return ShortConvSpec(
        channels=reading.hidden_size(fields),
        width=fields.integer("conv_L_cache", 2, 64),
        bias=fields.boolean("conv_bias", False),
    )


def mixers(fields: Fields) -> list[AttentionSpec | ShortConvSpec]:
    """Return the mixer of each layer."""
    attention = reading.attention(fields, qk_norm=QKNormSpec(norm(fields)))
    conv = short_conv(fields)
    return [attention if attends else conv for attends in _attends(fields)]


def _read(fields: Fields) -> ModelSpec:
    mlp, norms = MLPSpec(intermediate_size=_intermediate_size(fields)), reading.norms_before(norm(fields))
    layers = tuple(LayerSpec(mixer=mixer, feed_forward=mlp, norms=norms) for mixer in mixers(fields))
    return reading.model(fields, LFM2.architecture, layers, norm=norm(fields), names=NAMES)


_DEFAULTS: dict[str, Any] = {
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 128_000,
    "norm_eps": 1e-5,
    "rope_theta": 1e6,
    "conv_L_cache": 3,
    "block_multiple_of": 256,
    "block_ffn_dim_multiplier": 1.0,
    "tie_word_embeddings": True,
}
LFM2 = Family(
    architecture="Lfm2ForCausalLM",
    model_type="lfm2",
    read=_read,
    defaults=_DEFAULTS,
    aliases={"block_ff_dim": "intermediate_size", "tie_embedding": "tie_word_embeddings"},
)
