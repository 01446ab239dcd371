"""Nomic BERT (arXiv 2402.01613): BERT with RoPE, gated feed-forwards and few biases."""

from __future__ import annotations

from octavo_engine.model.checkpoint.names import TensorNames
from octavo_engine.model.families import reading
from octavo_engine.model.families.bert import BERT_DEFAULTS
from octavo_engine.model.families.encoder import encoder_families
from octavo_engine.model.families.encoder_kind import EncoderKind
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import AttentionSpec, MLPSpec

_LAYER = "encoder.layers.{layer}"
_QKV = f"{_LAYER}.attn.Wqkv"
_NAMES = TensorNames(
    embedding="embeddings.word_embeddings",
    text_kinds="embeddings.token_type_embeddings",
    embedding_norm="emb_ln",
    attention=f"{_LAYER}.attn",
    query=_QKV,
    key=_QKV,
    value=_QKV,
    output=f"{_LAYER}.attn.out_proj",
    after_mixer=f"{_LAYER}.norm1",
    gate=f"{_LAYER}.mlp.fc12",
    up=f"{_LAYER}.mlp.fc11",
    down=f"{_LAYER}.mlp.fc2",
    after_feed_forward=f"{_LAYER}.norm2",
)


_UNSUPPORTED = (
    "prenorm",
    "parallel_block",
    "use_rms_norm",
    "rotary_emb_interleaved",
    "causal",
    "qkv_proj_bias",
    "mlp_fc1_bias",
    "mlp_fc2_bias",
)


def _parts(fields: Fields) -> tuple[AttentionSpec, MLPSpec]:
    reading.refuse_if_true(fields, *_UNSUPPORTED)
    for name in ("rotary_scaling_factor", "rotary_emb_scale_base", "moe_every_n_layers"):
        if fields.has(name) and fields.values[name]:
            raise fields.wrong(name, fields.values[name], "is not supported, only null")
    act = "silu" if fields.text("hidden_act") == "swiglu" else None
    return reading.attention(fields.without("num_key_value_heads"), causal=False), reading.mlp(fields, activation=act)


_KIND = EncoderKind(prefixes=("nomic_bert.", "bert."), names=_NAMES, parts=_parts, first_position=None)
_DEFAULTS = {
    **BERT_DEFAULTS,
    "vocab_size": 30528,
    "hidden_act": "silu",
    "rope_theta": 1000.0,
    "max_position_embeddings": 2048,
}
_ALIASES = {
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_layer": "num_hidden_layers",
    "n_inner": "intermediate_size",
    "n_positions": "max_position_embeddings",
    "rotary_emb_base": "rope_theta",
    "rotary_emb_fraction": "partial_rotary_factor",
    "layer_norm_epsilon": "layer_norm_eps",
    "activation_function": "hidden_act",
}
"""The names of fields in files on the hub."""

NOMIC_BERT_FAMILIES = encoder_families(_KIND, "NomicBert", "nomic_bert", defaults=_DEFAULTS, aliases=_ALIASES)
