"""StableLM 2 of Stability AI (arXiv 2402.17834): Llama with LayerNorm, and RoPE on a quarter of each head.

Some models have QK norm with weights of each head's own, or attention and feed-forward in parallel.
"""

from __future__ import annotations

from dataclasses import replace

from octavo_engine.model.checkpoint.names import TensorNames
from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import LayerNorms, LayerSpec, ModelSpec, QKNormSpec

_NAMES = TensorNames(
    query_norm="model.layers.{layer}.self_attn.q_layernorm.norms.{head}",
    key_norm="model.layers.{layer}.self_attn.k_layernorm.norms.{head}",
)


def _read(fields: Fields) -> ModelSpec:
    norm, parallel = reading.layer_norm(fields, bias=True), fields.boolean("use_parallel_residual", False)
    qk_norm = None
    if fields.boolean("qk_layernorm", False):
        qk_norm = QKNormSpec(reading.layer_norm(fields, bias=False), own_weights=True)
    bias = fields.boolean("use_qkv_bias", False)
    layer = LayerSpec(
        mixer=reading.attention(fields, partial_rotary=True, odd_rotary=False, qkv_bias=bias, qk_norm=qk_norm),
        feed_forward=reading.mlp(fields),
        norms=LayerNorms(before_mixer=norm, before_feed_forward=None if parallel else norm),
        parallel=parallel,
    )
    return reading.model(fields, STABLELM.architecture, reading.repeated(fields, layer), norm=norm, names=_NAMES)


STABLELM = Family(
    architecture="StableLmForCausalLM",
    model_type="stablelm",
    read=_read,
    defaults={
        "num_key_value_heads": 32,
        "hidden_act": "silu",
        "layer_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.25,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
        "eos_token_id": 0,
    },
)
STABLELM_EPOCH: Family = replace(
    STABLELM,
    architecture="StableLMEpochForCausalLM",
    model_type="stablelm_epoch",
    read=lambda fields: replace(_read(fields), architecture=STABLELM_EPOCH.architecture),
    aliases={"rope_pct": "partial_rotary_factor", "norm_eps": "layer_norm_eps"},
)
"""The first version, under the class of its own repository."""
