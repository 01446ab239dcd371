"""Helium 1 of Kyutai: Llama whose RoPE rotates pairs of neighbouring dimensions, as ERNIE's does."""

from __future__ import annotations

from octavo_engine.model.families.ernie import read_pairs
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import ModelSpec


def _read(fields: Fields) -> ModelSpec:
    qkv_bias, mlp_bias = fields.boolean("attention_bias", False), fields.boolean("mlp_bias", False)
    return read_pairs(fields, HELIUM.architecture, qkv_bias=qkv_bias, bias=False, mlp_bias=mlp_bias, tied=False)


HELIUM = Family(
    architecture="HeliumForCausalLM",
    model_type="helium",
    read=_read,
    defaults={
        "num_key_value_heads": 20,
        "head_dim": 128,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-8,
        "rope_theta": 100000.0,
        "max_position_embeddings": 4096,
        "eos_token_id": 2,
    },
)
