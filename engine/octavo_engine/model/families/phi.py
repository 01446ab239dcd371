"""Phi 1, 1.5 and 2 of Microsoft (arXiv 2306.11644): attention and feed-forward in parallel after one LayerNorm.

Half of each head rotates, linears and the head have biases, and the feed-forward has no gate.
"""

from __future__ import annotations

from octavo_engine.model.checkpoint.names import TensorNames
from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import HeadSpec, LayerNorms, LayerSpec, ModelSpec, QKNormSpec

_NAMES = TensorNames(
    norm="model.final_layernorm",
    output="model.layers.{layer}.self_attn.dense",
    query_norm="model.layers.{layer}.self_attn.q_layernorm",
    key_norm="model.layers.{layer}.self_attn.k_layernorm",
    up="model.layers.{layer}.mlp.fc1",
    down="model.layers.{layer}.mlp.fc2",
)


def _read(fields: Fields) -> ModelSpec:
    norm = reading.layer_norm(fields, bias=True)
    qk_norm = QKNormSpec(norm) if fields.boolean("qk_layernorm", False) else None
    layer = LayerSpec(
        mixer=reading.attention(
            fields, partial_rotary=True, odd_rotary=False, qkv_bias=True, output_bias=True, qk_norm=qk_norm
        ),
        feed_forward=reading.plain_mlp(fields, bias=True),
        norms=LayerNorms(before_mixer=norm),
        parallel=True,
    )
    head = HeadSpec(fields.boolean("tie_word_embeddings", False), bias=True)
    return reading.model(fields, PHI.architecture, reading.repeated(fields, layer), norm=norm, head=head, names=_NAMES)


PHI = Family(
    architecture="PhiForCausalLM",
    model_type="phi",
    read=_read,
    defaults={
        "vocab_size": 51200,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 24,
        "num_attention_heads": 32,
        "hidden_act": "gelu_new",
        "max_position_embeddings": 2048,
        "layer_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
        "tie_word_embeddings": False,
        "eos_token_id": 2,
    },
)
