"""GTE encoders of Alibaba (mGTE, arXiv 2407.19669): BERT with RoPE and gated feed-forwards."""

from __future__ import annotations

from dataclasses import replace

from octavo_engine.model.checkpoint.names import QKVLayout, TensorNames
from octavo_engine.model.families import reading
from octavo_engine.model.families.bert import BERT_DEFAULTS
from octavo_engine.model.families.encoder import encoder_families
from octavo_engine.model.families.encoder_kind import EncoderKind
from octavo_engine.model.families.rope import rope
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import AttentionSpec, MLPSpec, RopeSpec

_LAYER = "encoder.layer.{layer}"
_QKV, _UP = f"{_LAYER}.attention.qkv_proj", f"{_LAYER}.mlp.up_gate_proj"
_NAMES = TensorNames(
    embedding="embeddings.word_embeddings",
    text_kinds="embeddings.token_type_embeddings",
    embedding_norm="embeddings.LayerNorm",
    attention=f"{_LAYER}.attention",
    query=_QKV,
    key=_QKV,
    value=_QKV,
    output=f"{_LAYER}.attention.o_proj",
    after_mixer=f"{_LAYER}.attn_ln",
    gate=_UP,
    up=_UP,
    gate_up_layout=QKVLayout(order=(1, 0)),
    down=f"{_LAYER}.mlp.down_proj",
    after_feed_forward=f"{_LAYER}.mlp_ln",
)


def _parts(fields: Fields) -> tuple[AttentionSpec, MLPSpec]:
    reading.refuse_if_true(fields, "logn_attention_scale")
    for name, only in (("position_embedding_type", "rope"), ("layer_norm_type", "layer_norm")):
        if fields.text(name, only) != only:
            raise fields.wrong(name, fields.values[name], f"is not supported, only {only}")
    attention = reading.attention(
        fields.without("num_key_value_heads"), rope=None, causal=False, qkv_bias=True, output_bias=True
    )
    rotated = replace(attention, rope=_rope(fields, attention.head_dim))
    return rotated, reading.mlp(fields, output_bias=True)


def _rope(fields: Fields, head_dim: int) -> RopeSpec | None:
    """Read the RoPE; `ntk` in files on the hub: a base times `factor`, all pairs slower (kexue.fm/archives/9706)."""
    scaling = fields.mapping("rope_scaling")
    if scaling is None or scaling.values.get("type") != "ntk":
        return rope(fields, reading.max_position(fields), head_dim)
    factor, theta = scaling.number("factor", 1, 1e6), fields.number("rope_theta", 1e-3, 1e12)
    if scaling.has("mixed_b"):
        raise scaling.wrong("mixed_b", scaling.values["mixed_b"], "is not supported, only null")
    return RopeSpec(theta * factor, "linear", factor ** (2 / head_dim))


_KIND = EncoderKind(prefixes=("new.", "gte."), names=_NAMES, parts=_parts, first_position=None)
_DEFAULTS = {
    **BERT_DEFAULTS,
    "vocab_size": 250048,
    "type_vocab_size": 1,
    "max_position_embeddings": 8192,
    "rope_theta": 160000.0,
}
_OLD_DEFAULTS = {**_DEFAULTS, "vocab_size": 30528, "rope_theta": 10000.0, "max_position_embeddings": 2048}

GTE_FAMILIES = (
    *encoder_families(_KIND, "Gte", "gte", defaults=_DEFAULTS),
    *encoder_families(_KIND, "New", "new", defaults=_OLD_DEFAULTS),
)
"""The families by the names of transformers' classes, and by those in files on the hub."""
