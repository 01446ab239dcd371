"""TeleChat2 of China Telecom (arXiv 2507.18013): Llama with key and value in one tensor, and biases after both parts.

The base of RoPE follows from two lengths of sequences in training, and contexts end at the longer one: beyond it the
published code changes the base with each sequence.
"""

from __future__ import annotations

import math

from octavo_engine.model.checkpoint.names import QKVLayout, TensorNames
from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import LayerSpec, ModelSpec

_LAYER = "transformer.h.{layer}"
_KEY_VALUE = f"{_LAYER}.self_attention.key_value"


def _read(fields: Fields) -> ModelSpec:
    reading.refuse_if_true(fields, "embed_layernorm", "apply_residual_connection_post_layernorm")
    norm = reading.rms_norm(fields)
    mixer = reading.attention(fields, rope=None, output_bias=True)
    mixer = reading.attention(fields.with_defaults(rope_theta=_theta(fields, mixer.head_dim)), output_bias=True)
    layer = LayerSpec(mixer=mixer, feed_forward=reading.mlp(fields, output_bias=True), norms=reading.norms_before(norm))
    names = TensorNames(
        qkv_layout=QKVLayout(groups=mixer.num_kv_heads),
        embedding="transformer.word_embeddings",
        norm="transformer.ln_f",
        before_mixer=f"{_LAYER}.input_layernorm",
        before_feed_forward=f"{_LAYER}.post_attention_layernorm",
        query=f"{_LAYER}.self_attention.query",
        key=_KEY_VALUE,
        value=_KEY_VALUE,
        output=f"{_LAYER}.self_attention.dense",
        attention=f"{_LAYER}.self_attention",
        gate=f"{_LAYER}.mlp.gate_proj",
        up=f"{_LAYER}.mlp.up_proj",
        down=f"{_LAYER}.mlp.down_proj",
    )
    return reading.model(fields, TELECHAT2.architecture, reading.repeated(fields, layer), norm=norm, names=names)


def _theta(fields: Fields, head_dim: int) -> float:
    """Return RoPE's base: 10,000 unless sequences of the last training were longer than `base_seqlen`."""
    ratio = reading.max_position(fields) / fields.integer("base_seqlen", 1, 1 << 30)
    alpha = max(1, 2 ** math.ceil(math.log2(ratio) + 1) - 1)
    return float(10000 * alpha ** (head_dim / max(head_dim - 2, 1)))


TELECHAT2 = Family(
    architecture="TeleChat2ForCausalLM",
    model_type="telechat",
    read=_read,
    aliases={
        "n_layer": "num_hidden_layers",
        "n_head": "num_attention_heads",
        "ffn_hidden_size": "intermediate_size",
        "layer_norm_epsilon": "rms_norm_eps",
        "training_seqlen": "max_position_embeddings",
    },
    defaults={
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 8192,
        "eos_token_id": 2,
    },
    left_out=frozenset({"rope_theta"}),
)
