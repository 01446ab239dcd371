"""StarCoder 2 of BigCode (arXiv 2402.19173): Llama with LayerNorm, biases, and a feed-forward without a gate.

Its layers have a sliding window if config.json states one.
"""

from __future__ import annotations

from octavo_engine.model.checkpoint.names import TensorNames
from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import HeadSpec, LayerSpec, ModelSpec

_NAMES = TensorNames(up="model.layers.{layer}.mlp.c_fc", down="model.layers.{layer}.mlp.c_proj")


def _read(fields: Fields) -> ModelSpec:
    norm, bias = reading.layer_norm(fields, bias=True, eps="norm_epsilon"), fields.boolean("use_bias", True)
    layer = LayerSpec(
        mixer=reading.attention(fields, qkv_bias=bias, output_bias=bias, window=reading.window(fields)),
        feed_forward=reading.mlp(fields, gated=False, bias=bias, output_bias=bias),
        norms=reading.norms_before(norm),
    )
    head = HeadSpec(fields.boolean("tie_word_embeddings", True))
    layers = reading.repeated(fields, layer)
    return reading.model(fields, STARCODER2.architecture, layers, norm=norm, head=head, names=_NAMES)


STARCODER2 = Family(
    architecture="Starcoder2ForCausalLM",
    model_type="starcoder2",
    read=_read,
    defaults={
        "num_key_value_heads": 2,
        "hidden_act": "gelu_pytorch_tanh",
        "norm_epsilon": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 4096,
        "eos_token_id": 50256,
    },
)
