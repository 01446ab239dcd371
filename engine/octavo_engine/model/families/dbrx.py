"""DBRX of Databricks: Llama with a mixture of experts in every layer.

Norms are LayerNorm without biases, and query, key and value are clamped to `clip_qkv`. Three tensors hold a layer's
experts (gate, up and down), each with the rows of one expert after another's.
"""

from __future__ import annotations

from dataclasses import replace

from octavo_engine.model.checkpoint.names import TensorNames
from octavo_engine.model.families import mixtures, reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import AttentionSpec, LayerSpec, ModelSpec, MoESpec, NormSpec, RouterSpec

_BLOCK = "transformer.blocks.{layer}"
_QKV = f"{_BLOCK}.norm_attn_norm.attn.Wqkv"
_NAMES = TensorNames(
    embedding="transformer.wte",
    norm="transformer.norm_f",
    before_mixer=f"{_BLOCK}.norm_attn_norm.norm_1",
    before_feed_forward=f"{_BLOCK}.norm_attn_norm.norm_2",
    query=_QKV,
    key=_QKV,
    value=_QKV,
    output=f"{_BLOCK}.norm_attn_norm.attn.out_proj",
    attention=f"{_BLOCK}.norm_attn_norm.attn",
    router=f"{_BLOCK}.ffn.router.layer",
    expert_gate=f"{_BLOCK}.ffn.experts.mlp.w1",
    expert_up=f"{_BLOCK}.ffn.experts.mlp.v1",
    expert_down=f"{_BLOCK}.ffn.experts.mlp.w2",
)


def _read(fields: Fields) -> ModelSpec:
    norm = NormSpec(1e-5, "layer")
    layer = LayerSpec(mixer=_mixer(fields), feed_forward=_experts(fields), norms=reading.norms_before(norm))
    reading.refuse_if_true(fields, "tie_word_embeddings")
    return reading.model(fields, DBRX.architecture, reading.repeated(fields, layer), norm=norm, names=_NAMES)


def _mixer(fields: Fields) -> AttentionSpec:
    own = fields.mapping("attn_config") or Fields(fields.origin, {})
    theta = own.number("rope_theta", 1e-3, 1e12, default=10000.0)
    kv_heads = own.integer("kv_n_heads", 1, 1 << 16, default=1)
    given = {"rope_theta": theta, **fields.without("head_dim").values, "num_key_value_heads": kv_heads}
    clip = own.number("clip_qkv", 1e-6, 1e6) if own.has("clip_qkv") else None
    return reading.attention(replace(fields, values=given), clip=clip)


def _experts(fields: Fields) -> MoESpec:
    own = fields.mapping("ffn_config") or Fields(fields.origin, {})
    activation = own.mapping("ffn_act_fn") or Fields(fields.origin, {})
    order = own.values.get("moe_normalize_expert_weights", 1.0)
    if order not in (None, 1):
        raise own.wrong("moe_normalize_expert_weights", order, "is not supported, only 1 and null")
    given = {name: value for name, value in own.values.items() if value is not None}
    defaults = {"moe_num_experts": 4, "moe_top_k": 1, "ffn_hidden_size": 3584}
    values = {**defaults, **given, "hidden_act": activation.text("name", default="silu")}
    values["num_hidden_layers"] = reading.num_layers(fields)
    router = RouterSpec(scores="softmax", renormalize=order is not None)
    return mixtures.experts(
        replace(own, values=values), router, count="moe_num_experts", top_k="moe_top_k", size="ffn_hidden_size"
    )


DBRX = Family(
    architecture="DbrxForCausalLM",
    model_type="dbrx",
    read=_read,
    aliases={
        "d_model": "hidden_size",
        "n_heads": "num_attention_heads",
        "n_layers": "num_hidden_layers",
        "max_seq_len": "max_position_embeddings",
    },
    defaults={
        "vocab_size": 32000,
        "hidden_size": 2048,
        "num_attention_heads": 16,
        "num_hidden_layers": 24,
        "max_position_embeddings": 2048,
    },
)
