"""Llama 4 of Meta: Llama with experts, attention within chunks, and layers without RoPE.

Three of four layers have RoPE, then QK norm, and see only tokens of their own chunk (`attention_chunk_size`). The
others see all tokens; they have no RoPE, and their queries grow with their position. Routing weights multiply what the
experts read.
"""

from __future__ import annotations

from dataclasses import replace

from octavo_engine.model.checkpoint.names import TensorNames
from octavo_engine.model.families import mixtures, reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import (
    AttentionSpec,
    LayerSpec,
    ModelSpec,
    MoESpec,
    NormSpec,
    QKNormSpec,
    QueryScaling,
    RouterSpec,
    SharedExpertSpec,
)

_FEED_FORWARD = "model.layers.{layer}.feed_forward"
_NAMES = TensorNames(
    gate=f"{_FEED_FORWARD}.gate_proj",
    up=f"{_FEED_FORWARD}.up_proj",
    down=f"{_FEED_FORWARD}.down_proj",
    router=f"{_FEED_FORWARD}.router",
    expert_gate=f"{_FEED_FORWARD}.experts.gate_up_proj",
    expert_up=f"{_FEED_FORWARD}.experts.gate_up_proj",
    expert_down=f"{_FEED_FORWARD}.experts.down_proj",
    expert_layout="columns",
    shared_gate=f"{_FEED_FORWARD}.shared_expert.gate_proj",
    shared_up=f"{_FEED_FORWARD}.shared_expert.up_proj",
    shared_down=f"{_FEED_FORWARD}.shared_expert.down_proj",
)


def _read(fields: Fields) -> ModelSpec:
    norm, count = reading.rms_norm(fields), reading.num_layers(fields)
    rotating, known = reading.rotates(fields), {"chunked_attention", "full_attention"}
    chunks = fields.has("attention_chunk_size")
    kinds = reading.layer_types(
        fields, known, lambda layer: "chunked_attention" if chunks and rotating[layer] else "full_attention"
    )
    step = fields.integer("interleave_moe_layer_step", 1, 1 << 16)
    sparse = fields.integers("moe_layers") if fields.has("moe_layers") else range(step - 1, count, step)
    width = reading.intermediate_size(fields, "intermediate_size_mlp")
    dense, experts = reading.mlp(fields, intermediate_size=width), _experts(fields)
    layers = tuple(
        LayerSpec(
            mixer=_mixer(fields, rotates=rotating[layer], chunked=kinds[layer] == "chunked_attention"),
            feed_forward=experts if layer in sparse else dense,
            norms=reading.norms_before(norm),
        )
        for layer in range(count)
    )
    return reading.model(fields, LLAMA4.architecture, layers, norm=norm, names=_NAMES)


def _mixer(fields: Fields, *, rotates: bool, chunked: bool) -> AttentionSpec:
    bias, norm = fields.boolean("attention_bias", False), NormSpec(fields.number("rms_norm_eps", 0, 1), weight=False)
    normed = fields.boolean("use_qk_norm", True) and rotates
    scaling = QueryScaling(fields.number("attn_scale", 0, 1e3), fields.integer("floor_scale", 1, 1 << 30), shift=1)
    grows = fields.boolean("attn_temperature_tuning", True) and not rotates
    mixer = reading.attention(
        fields,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=QKNormSpec(norm, after_rope=True) if normed else None,
        query_scaling=scaling if grows else None,
        window=fields.integer("attention_chunk_size", 1, 1 << 30) if chunked else None,
        chunked=chunked,
    )
    return reading.interleaved(mixer) if rotates else replace(mixer, rope=None)


def _experts(fields: Fields) -> MoESpec:
    return mixtures.experts(
        fields,
        RouterSpec(scores="sigmoid of chosen"),
        count="num_local_experts",
        size="intermediate_size",
        shared=SharedExpertSpec(mlp=reading.mlp(fields)),
        weighs_inputs=True,
    )


LLAMA4 = Family(
    architecture="Llama4ForCausalLM",
    model_type="llama4_text",
    read=_read,
    defaults={
        "num_key_value_heads": 8,
        "head_dim": 128,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "max_position_embeddings": 131072,
        "intermediate_size_mlp": 16384,
        "num_local_experts": 16,
        "num_experts_per_tok": 1,
        "interleave_moe_layer_step": 1,
        "no_rope_layer_interval": 4,
        "attention_chunk_size": 8192,
        "floor_scale": 8192,
        "attn_scale": 0.1,
        "eos_token_id": 2,
    },
    nullable=frozenset({"attention_chunk_size"}),
    without_effect=frozenset({"attention_chunk_size"}),
)
