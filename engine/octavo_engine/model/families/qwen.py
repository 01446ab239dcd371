"""Qwen 1 (arXiv 2309.16609): Qwen2 under GPT-2's names of fields and tensors.

Query, key and value are one tensor. Beyond `seq_length` tokens its code changes RoPE's base and scales queries, so
contexts end there.
"""

from __future__ import annotations

from octavo_engine.model.checkpoint.names import TensorNames
from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import LayerSpec, ModelSpec

_LAYER = "transformer.h.{layer}"
_QKV = f"{_LAYER}.attn.c_attn"
_NAMES = TensorNames(
    embedding="transformer.wte",
    norm="transformer.ln_f",
    before_mixer=f"{_LAYER}.ln_1",
    before_feed_forward=f"{_LAYER}.ln_2",
    query=_QKV,
    key=_QKV,
    value=_QKV,
    output=f"{_LAYER}.attn.c_proj",
    attention=f"{_LAYER}.attn",
    gate=f"{_LAYER}.mlp.w2",
    up=f"{_LAYER}.mlp.w1",
    down=f"{_LAYER}.mlp.c_proj",
)


def _read(fields: Fields) -> ModelSpec:
    if not fields.boolean("no_bias", True):
        raise fields.wrong("no_bias", False, "is not supported")
    both = reading.intermediate_size(fields)
    if both % 2:
        raise fields.wrong("intermediate_size", both, "is odd, and gate and up have half of it each")
    norm = reading.rms_norm(fields)
    layer = LayerSpec(
        mixer=reading.attention(fields, partial_rotary=True, odd_rotary=False, qkv_bias=True),
        feed_forward=reading.mlp(fields, intermediate_size=both // 2, activation="silu"),
        norms=reading.norms_before(norm),
    )
    return reading.model(fields, QWEN.architecture, reading.repeated(fields, layer), norm=norm, names=_NAMES)


QWEN = Family(
    architecture="QWenLMHeadModel",
    model_type="qwen",
    read=_read,
    aliases={
        "seq_length": "max_position_embeddings",
        "kv_channels": "head_dim",
        "layer_norm_epsilon": "rms_norm_eps",
        "rotary_emb_base": "rope_theta",
        "rotary_pct": "partial_rotary_factor",
    },
    defaults={
        "head_dim": 128,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 2048,
        "eos_token_id": [151643, 151645],
    },
    left_out=frozenset({"num_key_value_heads"}),
)
