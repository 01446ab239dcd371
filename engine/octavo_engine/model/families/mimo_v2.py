"""MiMo V2 Flash of Xiaomi: Llama with sliding windows, attention sinks, and DeepSeek V3's router.

Five of six layers have a window, with sinks and twice as many KV heads as the others. Values are smaller than keys, and
scaled.
"""

from __future__ import annotations

from octavo_engine.model.checkpoint.names import TensorNames
from octavo_engine.model.families import mixtures, reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import AttentionSpec, ModelSpec

_NAMES = TensorNames(
    modules=((".sinks", ".attention_sink_bias"),), sinks="model.layers.{layer}.self_attn.attention_sink_bias"
)


def _read(fields: Fields) -> ModelSpec:
    norm, moe = (
        reading.rms_norm(fields),
        mixtures.experts(fields, mixtures.sigmoid_router(fields), count="n_routed_experts"),
    )
    feed_forward = mixtures.by_type(fields, moe, first_dense=1)
    windows = reading.windows(fields, default=lambda layer: layer > 0 and (layer + 1) % 6 != 0)
    layers = mixtures.layers([_mixer(fields, window) for window in windows], feed_forward, norm)
    return reading.model(fields, MIMO_V2_FLASH.architecture, layers, norm=norm, names=_NAMES)


def _mixer(fields: Fields, window: int | None) -> AttentionSpec:
    """Return the attention of a layer with this window."""
    kind, kv_heads = reading.layer_type(window), fields.integer("num_key_value_heads", 1, 1 << 15)
    values: dict[str, float] = {"num_key_value_heads": kv_heads if window is None else 2 * kv_heads}
    rope = (fields.mapping("rope_parameters") or fields).mapping(kind)
    if rope is not None and not rope.has("partial_rotary_factor") and rope.text("rope_type", "default") != "default":
        values["partial_rotary_factor"] = 1.0
    head_dim = fields.integer("head_dim", 2, 1024)
    return reading.attention(
        Fields(fields.origin, {**fields.values, **values}, read=fields.read),
        partial_rotary=True,
        layer_type=kind,
        qkv_bias=fields.boolean("attention_bias", False),
        value_dim=fields.integer("v_head_dim", 1, head_dim),
        value_scale=1.0
        if fields.values.get("attention_value_scale") is None
        else fields.number("attention_value_scale", 1e-6, 1e6),
        sinks=window is not None,
        window=window,
    )


MIMO_V2_FLASH = Family(
    architecture="MiMoV2FlashForCausalLM",
    model_type="mimo_v2_flash",
    read=_read,
    aliases={"num_local_experts": "n_routed_experts"},
    defaults={
        "hidden_size": 4096,
        "intermediate_size": 16384,
        "moe_intermediate_size": 2048,
        "num_hidden_layers": 48,
        "num_attention_heads": 64,
        "num_key_value_heads": 4,
        "head_dim": 192,
        "v_head_dim": 128,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 131072,
        "partial_rotary_factor": 0.334,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {"rope_type": "default", "rope_theta": 5e6},
        },
        "sliding_window": 129,
        "attention_value_scale": 0.707,
        "n_routed_experts": 256,
        "num_experts_per_tok": 8,
        "routed_scaling_factor": 1.0,
        "n_group": 1,
        "topk_group": 1,
        "vocab_size": 152576,
    },
    nullable=frozenset({"attention_value_scale"}),
    without_effect=frozenset({"attention_chunk_size"}),
)
