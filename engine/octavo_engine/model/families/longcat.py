"""LongCat Flash of Meituan (arXiv 2509.01322): latent attention, and experts whose result is added a layer later.

Each layer of the checkpoint is two layers here, of latent attention and a dense feed-forward. The experts read what the
first feed-forward reads, and are added after the second. Zero-computation experts return what they read.
"""

from __future__ import annotations

from dataclasses import replace

from octavo_engine.model.checkpoint.names import TensorNames
from octavo_engine.model.families import latent, mixtures, reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import LatentAttentionSpec, LayerSpec, ModelSpec, MoESpec, RouterSpec

_LAYER = "model.layers.{layer}"
_ATTENTION = f"{_LAYER}.self_attn.{{sublayer}}"
_NAMES = TensorNames(
    sublayers=2,
    before_mixer=f"{_LAYER}.input_layernorm.{{sublayer}}",
    before_feed_forward=f"{_LAYER}.post_attention_layernorm.{{sublayer}}",
    output=f"{_ATTENTION}.o_proj",
    query_down=f"{_ATTENTION}.q_a_proj",
    query_latent_norm=f"{_ATTENTION}.q_a_layernorm",
    query_up=f"{_ATTENTION}.q_b_proj",
    latent=f"{_ATTENTION}.kv_a_proj_with_mqa",
    latent_norm=f"{_ATTENTION}.kv_a_layernorm",
    latent_up=f"{_ATTENTION}.kv_b_proj",
    attention=_ATTENTION,
    gate=f"{_LAYER}.mlps.{{sublayer}}.gate_proj",
    up=f"{_LAYER}.mlps.{{sublayer}}.up_proj",
    down=f"{_LAYER}.mlps.{{sublayer}}.down_proj",
    router=f"{_LAYER}.mlp.router.classifier",
    correction_bias=f"{_LAYER}.mlp.router.e_score_correction_bias",
)


def _read(fields: Fields) -> ModelSpec:
    reading.refuse_if_true(fields, "router_bias")
    count = fields.integer("num_layers", 1, 2048) if fields.has("num_layers") else reading.num_layers(fields) // 2
    fields = Fields(fields.origin, {**fields.values, "num_hidden_layers": 2 * count}, read=fields.read)
    norm, attention = reading.rms_norm(fields), _attention(fields)
    second = LayerSpec(mixer=attention, feed_forward=reading.mlp(fields), norms=reading.norms_before(norm))
    first = replace(second, shortcut=_experts(fields))
    return reading.model(fields, LONGCAT_FLASH.architecture, (first, second) * count, norm=norm, names=_NAMES)


def _attention(fields: Fields) -> LatentAttentionSpec:
    """Return latent attention whose latents are scaled as if they were as wide as the residual stream."""
    spec, hidden = latent.attention(fields, interleaved=True), reading.hidden_size(fields)
    for name, meant in (("qk_head_dim", spec.key_dim), ("head_dim", spec.rotary_dim)):
        if fields.integer(name, 1, 1 << 16, default=meant) != meant:
            raise fields.wrong(name, fields.values[name], f"is not {meant}, as other fields say")
    rank = fields.integer("q_lora_rank", 1, 1 << 16)
    return replace(spec, latent_scales=((hidden / rank) ** 0.5, (hidden / spec.latent) ** 0.5))


def _experts(fields: Fields) -> MoESpec:
    if fields.text("zero_expert_type", "identity") != "identity":
        raise fields.wrong("zero_expert_type", fields.values["zero_expert_type"], "is not supported, only identity")
    zero = fields.integer("zero_expert_num", 0, 1 << 16)
    router = RouterSpec(
        scores="softmax",
        correction_bias=True,
        scale=fields.number("routed_scaling_factor", 1e-6, 1e6),
        in_float32=True,
    )
    return mixtures.experts(fields, router, count="n_routed_experts", zero_experts=zero)


LONGCAT_FLASH = Family(
    architecture="LongcatFlashForCausalLM",
    model_type="longcat_flash",
    read=_read,
    aliases={
        "ffn_hidden_size": "intermediate_size",
        "expert_ffn_hidden_size": "moe_intermediate_size",
        "moe_topk": "num_experts_per_tok",
        "num_local_experts": "n_routed_experts",
    },
    defaults={
        "hidden_size": 6144,
        "intermediate_size": 12288,
        "moe_intermediate_size": 2048,
        "num_hidden_layers": 56,
        "num_attention_heads": 64,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "n_routed_experts": 512,
        "zero_expert_num": 256,
        "num_experts_per_tok": 12,
        "routed_scaling_factor": 6.0,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e7,
        "max_position_embeddings": 131072,
        "vocab_size": 131072,
        "eos_token_id": 2,
    },
)
