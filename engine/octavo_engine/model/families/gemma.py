"""Gemma of Google (arXiv 2403.08295): Llama with scaled embeddings, and norms that multiply with 1 + their weight.

Embeddings are multiplied with the root of the hidden size, the activation is GELU, and the head's weight is the
embedding's.
"""

from __future__ import annotations

from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import HeadSpec, LayerSpec, ModelSpec


def _read(fields: Fields) -> ModelSpec:
    reading.refuse_if_true(fields, "use_bidirectional_attention")
    norm, bias = reading.rms_norm(fields, weight_offset=1.0), fields.boolean("attention_bias", False)
    activation = reading.activation(fields)
    layer = LayerSpec(
        mixer=reading.attention(fields, qkv_bias=bias, output_bias=bias),
        # Early files say "gelu" for the approximation by tanh.
        feed_forward=reading.mlp(fields, activation="gelu_pytorch_tanh" if activation == "gelu" else activation),
        norms=reading.norms_before(norm),
    )
    return reading.model(
        fields,
        GEMMA.architecture,
        reading.repeated(fields, layer),
        norm=norm,
        embedding_scale=reading.hidden_size(fields) ** 0.5,
        head=HeadSpec(fields.boolean("tie_word_embeddings", True)),
    )


GEMMA = Family(
    architecture="GemmaForCausalLM",
    model_type="gemma",
    read=_read,
    defaults={
        "num_key_value_heads": 16,
        "head_dim": 256,
        "hidden_act": "gelu_pytorch_tanh",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 8192,
        "eos_token_id": 1,
    },
)
