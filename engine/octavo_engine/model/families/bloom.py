"""BLOOM of BigScience (arXiv 2211.05100): a decoder with ALiBi instead of RoPE.

Norms are LayerNorm, one of them right after the embedding; linears have biases, and the feed-forward has no gate. One
tensor has query, key and value, head by head.
"""

from __future__ import annotations

from dataclasses import replace

from octavo_engine.model.checkpoint.names import QKVLayout, TensorNames, base_model_names
from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import ALiBiSpec, HeadSpec, LayerSpec, ModelSpec

_LAYER = "transformer.h.{layer}"
_QKV = f"{_LAYER}.self_attention.query_key_value"
_NAMES = TensorNames(
    embedding="transformer.word_embeddings",
    embedding_norm="transformer.word_embeddings_layernorm",
    norm="transformer.ln_f",
    before_mixer=f"{_LAYER}.input_layernorm",
    before_feed_forward=f"{_LAYER}.post_attention_layernorm",
    query=_QKV,
    key=_QKV,
    value=_QKV,
    output=f"{_LAYER}.self_attention.dense",
    attention=f"{_LAYER}.self_attention",
    up=f"{_LAYER}.mlp.dense_h_to_4h",
    down=f"{_LAYER}.mlp.dense_4h_to_h",
)

_STORED_NAMES = base_model_names("transformer.", "h.", "word_embeddings.", "word_embeddings_layernorm.", "ln_f.")


def _read(fields: Fields) -> ModelSpec:
    norm, into_stream = reading.layer_norm(fields, bias=True), "apply_residual_connection_post_layernorm"
    if fields.integer("pretraining_tp", 1, 1 << 16, default=1) > 1:
        reading.refuse_if_true(fields, "slow_but_exact")  # transformers then leaves out some biases
    mixer = reading.attention(fields, grouped=False, rope=None, alibi=ALiBiSpec(), qkv_bias=True, output_bias=True)
    layer = LayerSpec(
        mixer=mixer,
        feed_forward=reading.plain_mlp(fields.without("intermediate_size"), bias=True),
        norms=replace(reading.norms_before(norm), into_stream=fields.boolean(into_stream, False)),
    )
    return reading.model(
        fields,
        BLOOM.architecture,
        reading.repeated(fields, layer),
        norm=norm,
        embedding_norm=norm,
        head=HeadSpec(fields.boolean("tie_word_embeddings", True)),
        stored_names=_STORED_NAMES,
        names=replace(_NAMES, qkv_layout=QKVLayout(groups=mixer.num_heads)),
    )


BLOOM = Family(
    architecture="BloomForCausalLM",
    model_type="bloom",
    read=_read,
    aliases={
        "n_embed": "hidden_size",
        "n_layer": "num_hidden_layers",
        "n_head": "num_attention_heads",
        "layer_norm_epsilon": "layer_norm_eps",
        "seq_length": "max_position_embeddings",
    },
    defaults={
        "vocab_size": 250880,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "layer_norm_eps": 1e-5,
        "hidden_act": "gelu_pytorch_tanh",
        "max_position_embeddings": 2048,  # of the published models; ALiBi has no limit of its own
        "tie_word_embeddings": True,
        "eos_token_id": 2,
    },
)
