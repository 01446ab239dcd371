"""Falcon of TII (arXiv 2311.16867): three generations of decoders, with RoPE or ALiBi.

In the first, attention (with one KV head) and feed-forward run in parallel after one LayerNorm; in the second
(`new_decoder_architecture`) each has a LayerNorm of its own, and KV heads are groups. Falcon RW has ALiBi and computes
attention before the feed-forward (`parallel_attn` false). Files of 2023 name the class and its fields otherwise.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from octavo_engine.model.checkpoint.names import QKVLayout, TensorNames
from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import ALiBiSpec, AttentionSpec, HeadSpec, LayerNorms, LayerSpec, ModelSpec

_LAYER = "transformer.h.{layer}"
_QKV = f"{_LAYER}.self_attention.query_key_value"
_NAMES = TensorNames(
    embedding="transformer.word_embeddings",
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
_TWO_NORMS = replace(_NAMES, before_mixer=f"{_LAYER}.ln_attn", before_feed_forward=f"{_LAYER}.ln_mlp")


def _read(fields: Fields) -> ModelSpec:
    norm, parallel = reading.layer_norm(fields, bias=True), fields.boolean("parallel_attn", True)
    new, norms = fields.boolean("new_decoder_architecture", False), 1
    if new:
        norms = fields.integer("num_ln_in_parallel_attn", 1, 2, default=2)
    if new and not parallel:
        raise fields.wrong("parallel_attn", parallel, "is not supported with new_decoder_architecture")
    mixer = _mixer(fields, new=new)
    layer = LayerSpec(
        mixer=mixer,
        feed_forward=reading.plain_mlp(fields, "ffn_hidden_size", bias=mixer.qkv_bias),
        norms=LayerNorms(before_mixer=norm, before_feed_forward=None if parallel and norms == 1 else norm),
        parallel=parallel,
    )
    names = replace(_TWO_NORMS if norms == 2 else _NAMES, qkv_layout=QKVLayout(groups=mixer.num_kv_heads))
    head = HeadSpec(fields.boolean("tie_word_embeddings", True))
    return reading.model(
        fields, FALCON.architecture, reading.repeated(fields, layer), norm=norm, head=head, names=names
    )


def _mixer(fields: Fields, *, new: bool) -> AttentionSpec:
    bias, alibi = fields.boolean("bias", False), fields.boolean("alibi", False)
    values: dict[str, Any] = {"rope": None} if alibi else {}
    mixer = reading.attention(fields, grouped=False, qkv_bias=bias, output_bias=bias, **values)
    if alibi:  # transformers scales ALiBi's terms together with the scores
        mixer = replace(mixer, alibi=ALiBiSpec(factor=mixer.scale, rounded=True))
    if not new:
        return replace(mixer, num_kv_heads=1) if fields.boolean("multi_query", True) else mixer
    kv_heads = fields.integer("num_kv_heads", 1, mixer.num_heads, default=mixer.num_heads)
    if mixer.num_heads % kv_heads:
        raise fields.wrong("num_kv_heads", kv_heads, f"does not divide num_attention_heads {mixer.num_heads}")
    return replace(mixer, num_kv_heads=kv_heads)


FALCON = Family(
    architecture="FalconForCausalLM",
    model_type="falcon",
    read=_read,
    aliases={"n_embed": "hidden_size", "layer_norm_epsilon": "layer_norm_eps", "activation": "hidden_act"},
    defaults={
        "vocab_size": 65024,
        "hidden_size": 4544,
        "num_hidden_layers": 32,
        "num_attention_heads": 71,
        "layer_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 2048,
        "hidden_act": "gelu",
        "multi_query": True,
        "parallel_attn": True,
        "tie_word_embeddings": True,
        "eos_token_id": 11,
    },
)


def _read_published(fields: Fields) -> ModelSpec:
    fields = fields.with_defaults(new_decoder_architecture=fields.has("num_kv_heads"))
    return replace(FALCON.read(fields), architecture=RW.architecture)


RW = replace(
    FALCON,
    architecture="RWForCausalLM",
    model_type="RefinedWebModel",
    read=_read_published,
    aliases={
        **FALCON.aliases,
        "n_head": "num_attention_heads",
        "n_layer": "num_hidden_layers",
        "n_head_kv": "num_kv_heads",
    },
)
"""The class of Falcon's own repositories before transformers had one. Of its files those of 40B state a number of KV
heads, and that alone tells the second generation from the first."""
