"""Seed-OSS of ByteDance and InternLM 3 of Shanghai AI Laboratory: Llama with separate fields for its biases."""

from __future__ import annotations

from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import LayerSpec, ModelSpec


def _read(fields: Fields, architecture: str, *, qkv_bias: bool, output_bias: bool, mlp_bias: bool) -> ModelSpec:
    norm = reading.rms_norm(fields)
    layer = LayerSpec(
        mixer=reading.attention(fields, qkv_bias=qkv_bias, output_bias=output_bias),
        feed_forward=reading.mlp(fields, bias=mlp_bias, output_bias=mlp_bias),
        norms=reading.norms_before(norm),
    )
    return reading.model(fields, architecture, reading.repeated(fields, layer), norm=norm)


def _read_seed_oss(fields: Fields) -> ModelSpec:
    qkv_bias, output_bias = fields.boolean("attention_bias", True), fields.boolean("attention_out_bias", False)
    mlp_bias = fields.boolean("mlp_bias", False)
    return _read(fields, SEED_OSS.architecture, qkv_bias=qkv_bias, output_bias=output_bias, mlp_bias=mlp_bias)


def _read_internlm3(fields: Fields) -> ModelSpec:
    qkv_bias, bias = fields.boolean("qkv_bias", False), fields.boolean("bias", False)
    return _read(fields, INTERNLM3.architecture, qkv_bias=qkv_bias, output_bias=bias, mlp_bias=bias)


SEED_OSS = Family(
    architecture="SeedOssForCausalLM",
    model_type="seed_oss",
    read=_read_seed_oss,
    defaults={
        "num_key_value_heads": 8,
        "head_dim": 128,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 524288,
        "eos_token_id": 2,
    },
)
INTERNLM3 = Family(
    architecture="InternLM3ForCausalLM",
    model_type="internlm3",
    read=_read_internlm3,
    aliases={"attention_bias": "qkv_bias", "mlp_bias": "bias"},
    defaults={
        "num_key_value_heads": 2,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 32768,
        "eos_token_id": 2,
    },
)
