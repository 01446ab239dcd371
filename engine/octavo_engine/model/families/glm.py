"""GLM-4 (arXiv 2406.12793), GLM-4-0414 and the language model of GLM-OCR, of Zhipu: Llama with partial RoPE.

Half of each head rotates (in GLM-OCR all of it), in pairs of neighbouring dimensions; GLM-4's query, key and value have
biases. GLM-4-0414 and GLM-OCR also have norms after attention and feed-forward. Gate and up are one tensor.
"""

from __future__ import annotations

from octavo_engine.model.checkpoint.names import TensorNames
from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import LayerNorms, LayerSpec, ModelSpec

_GATE_UP = "model.layers.{layer}.mlp.gate_up_proj"
_NAMES = TensorNames(gate=_GATE_UP, up=_GATE_UP)
_NAMES_4 = TensorNames(
    gate=_GATE_UP,
    up=_GATE_UP,
    after_mixer="model.layers.{layer}.post_self_attn_layernorm",
    after_feed_forward="model.layers.{layer}.post_mlp_layernorm",
)


def _read(fields: Fields, architecture: str, *, norms_after: bool, names: TensorNames) -> ModelSpec:
    norm = reading.rms_norm(fields)
    after = norm if norms_after else None
    mixer = reading.attention(fields, partial_rotary=True, qkv_bias=fields.boolean("attention_bias", True))
    layer = LayerSpec(
        mixer=reading.interleaved(mixer),
        feed_forward=reading.mlp(fields),
        norms=LayerNorms(before_mixer=norm, after_mixer=after, before_feed_forward=norm, after_feed_forward=after),
    )
    return reading.model(fields, architecture, reading.repeated(fields, layer), norm=norm, names=names)


_DEFAULTS = {
    "num_key_value_heads": 2,
    "head_dim": 128,
    "hidden_act": "silu",
    "rms_norm_eps": 1.5625e-07,
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.5,
    "max_position_embeddings": 131072,
    "attention_bias": True,
    "eos_token_id": [151329, 151336, 151338],
}
GLM: Family = Family(
    architecture="GlmForCausalLM",
    model_type="glm",
    read=lambda fields: _read(fields, GLM.architecture, norms_after=False, names=_NAMES),
    defaults=_DEFAULTS,
)
GLM4: Family = Family(
    architecture="Glm4ForCausalLM",
    model_type="glm4",
    read=lambda fields: _read(fields, GLM4.architecture, norms_after=True, names=_NAMES_4),
    defaults=_DEFAULTS,
)
GLM_OCR: Family = Family(
    architecture="GlmOcrTextForCausalLM",
    model_type="glm_ocr_text",
    read=lambda fields: _read(fields, GLM_OCR.architecture, norms_after=True, names=_NAMES_4),
    defaults={
        **_DEFAULTS,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "partial_rotary_factor": 1.0,
        "attention_bias": False,
        "eos_token_id": None,
    },
)
"""The language model of GLM-OCR."""
