"""JetMoE of MyShell (arXiv 2404.07413): Llama with experts in attention and in the feed-forward.

An expert of attention has a query and an output projection; keys and values are the same for all experts. A bias is
added to the sum of a layer's experts.
"""

from __future__ import annotations

from dataclasses import replace

from octavo_engine.model.checkpoint.names import TensorNames
from octavo_engine.model.families import mixtures, reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import AttentionExpertsSpec, HeadSpec, LayerSpec, ModelSpec, NormSpec, RouterSpec

_ATTENTION, _MLP = "model.layers.{layer}.self_attention", "model.layers.{layer}.mlp"
_NAMES = TensorNames(
    attention=_ATTENTION,
    key=f"{_ATTENTION}.kv_proj",
    value=f"{_ATTENTION}.kv_proj",
    router=f"{_MLP}.router.layer",
    expert_gate=f"{_MLP}.input_linear.weight",
    expert_up=f"{_MLP}.input_linear.weight",
    expert_down=f"{_MLP}.output_linear.weight",
    expert_layout="rows",
)
_LAYER_NORM = NormSpec(1e-6)
"""The norms in layers; the epsilon in config.json is that of the last norm alone."""


def _read(fields: Fields) -> ModelSpec:
    moe = mixtures.experts(fields, RouterSpec(), count="num_local_experts", size="intermediate_size")
    heads = reading.attention(
        fields.without("num_attention_heads").with_defaults(
            num_attention_heads=moe.top_k * fields.integer("num_key_value_heads", 1, 1 << 14)
        )
    )
    mixer = AttentionExpertsSpec(
        num_heads=heads.num_kv_heads,
        head_dim=heads.head_dim,
        num_experts=moe.num_experts,
        top_k=moe.top_k,
        scale=heads.scale,
        rope=heads.rope,
    )
    layer = LayerSpec(mixer=mixer, feed_forward=replace(moe, output_bias=True), norms=reading.norms_before(_LAYER_NORM))
    head = HeadSpec(fields.boolean("tie_word_embeddings", True))
    layers = reading.repeated(fields, layer)
    return reading.model(fields, JETMOE.architecture, layers, norm=reading.rms_norm(fields), head=head, names=_NAMES)


JETMOE = Family(
    architecture="JetMoeForCausalLM",
    model_type="jetmoe",
    read=_read,
    aliases={"kv_channels": "head_dim", "activation_function": "hidden_act"},
    defaults={
        "vocab_size": 32000,
        "hidden_size": 2048,
        "num_hidden_layers": 12,
        "num_key_value_heads": 16,
        "head_dim": 128,
        "intermediate_size": 5632,
        "max_position_embeddings": 4096,
        "hidden_act": "silu",
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "eos_token_id": 2,
    },
)
