"""ChatGLM 2 and 3, and GLM-4 in Zhipu's own format (arXiv 2406.12793): GLM under names of its own.

The first ChatGLM, in which a prompt's tokens see one another, is another model under the same name: only it has
`inner_hidden_size`.
"""

from __future__ import annotations

from dataclasses import replace

from octavo_engine.model.checkpoint.names import StoredNames, TensorNames
from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import LayerSpec, ModelSpec

_LAYER = "transformer.encoder.layers.{layer}"
_QKV, _GATE_UP = f"{_LAYER}.self_attention.query_key_value", f"{_LAYER}.mlp.dense_h_to_4h"
_NAMES = TensorNames(
    embedding="transformer.embedding.word_embeddings",
    norm="transformer.encoder.final_layernorm",
    head="transformer.output_layer",
    before_mixer=f"{_LAYER}.input_layernorm",
    before_feed_forward=f"{_LAYER}.post_attention_layernorm",
    query=_QKV,
    key=_QKV,
    value=_QKV,
    output=f"{_LAYER}.self_attention.dense",
    attention=f"{_LAYER}.self_attention",
    gate=_GATE_UP,
    up=_GATE_UP,
    down=f"{_LAYER}.mlp.dense_4h_to_h",
)
_OLD_VOCABULARY = 65024
"""The vocabulary of ChatGLM 2 and 3."""


def _read(fields: Fields) -> ModelSpec:
    if fields.has("inner_hidden_size"):
        raise fields.wrong("inner_hidden_size", fields.values["inner_hidden_size"], "is of the first ChatGLM")
    for name, value in (("rmsnorm", True), ("post_layer_norm", True), ("original_rope", True)):
        if fields.boolean(name, value) is not value:
            raise fields.wrong(name, fields.values[name], "is not supported")
    if (bits := fields.integer("quantization_bit", 0, 64, default=0)) != 0:
        raise fields.wrong("quantization_bit", bits, "is not supported: weights quantized by ChatGLM's own code")
    reading.refuse_if_true(fields, "apply_residual_connection_post_layernorm")
    norm, bias = reading.rms_norm(fields), fields.boolean("add_bias_linear", False)
    if not fields.boolean("multi_query_attention", False):  # each head's query, key and value stand together then
        raise fields.wrong("multi_query_attention", False, "is not supported")
    fields = replace(fields, values={**fields.values, "rope_theta": 10000.0 * _ratio(fields)})
    mixer = reading.attention(
        fields, partial_rotary=True, qkv_bias=bias or fields.boolean("add_qkv_bias", False), output_bias=bias
    )
    layer = LayerSpec(
        mixer=reading.interleaved(mixer),
        feed_forward=reading.mlp(fields, bias=bias, output_bias=bias, activation="silu"),
        norms=reading.norms_before(norm),
    )
    layers, unread = reading.repeated(fields, layer), StoredNames(ignored=("transformer.rotary_pos_emb.",))
    return reading.model(fields, CHATGLM.architecture, layers, norm=norm, names=_NAMES, stored_names=unread)


def _ratio(fields: Fields) -> float:
    """Return the factor of RoPE's base. ChatGLM 2's code divides positions by it, and ChatGLM 3's does as GLM-4's."""
    ratio = fields.number("rope_ratio", 1e-3, 1e6, default=1.0)
    if ratio != 1 and fields.integer("vocab_size", 1, 1 << 26) == _OLD_VOCABULARY:
        raise fields.wrong("rope_ratio", ratio, "means different things in ChatGLM 2 and ChatGLM 3")
    return ratio


CHATGLM = Family(
    architecture="ChatGLMModel",
    model_type="chatglm",
    read=_read,
    aliases={
        "padded_vocab_size": "vocab_size",
        "num_layers": "num_hidden_layers",
        "ffn_hidden_size": "intermediate_size",
        "kv_channels": "head_dim",
        "multi_query_group_num": "num_key_value_heads",
        "layernorm_epsilon": "rms_norm_eps",
        "seq_length": "max_position_embeddings",
    },
    defaults={
        "head_dim": 128,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 2048,
        "partial_rotary_factor": 0.5,
        "eos_token_id": 2,
    },
)
CHATGLM_GENERATING = replace(CHATGLM, architecture="ChatGLMForConditionalGeneration")
"""The class that some files name."""
