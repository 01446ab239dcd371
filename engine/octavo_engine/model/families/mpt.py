"""MPT of MosaicML: a decoder with ALiBi instead of RoPE, LayerNorm, and no biases.

Three options that transformers' class does not compute are ignored here too: learnt positions, norms of query and key,
and fewer KV heads; a checkpoint with one of them has other tensors. ALiBi is always on, with a largest bias of 8.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from octavo_engine.model.checkpoint.names import TensorNames
from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import ALiBiSpec, HeadSpec, LayerSpec, ModelSpec

_LAYER = "transformer.blocks.{layer}"
_QKV = f"{_LAYER}.attn.Wqkv"
_NAMES = TensorNames(
    embedding="transformer.wte",
    norm="transformer.norm_f",
    before_mixer=f"{_LAYER}.norm_1",
    before_feed_forward=f"{_LAYER}.norm_2",
    query=_QKV,
    key=_QKV,
    value=_QKV,
    output=f"{_LAYER}.attn.out_proj",
    attention=f"{_LAYER}.attn",
    up=f"{_LAYER}.ffn.up_proj",
    down=f"{_LAYER}.ffn.down_proj",
)


def _read(fields: Fields) -> ModelSpec:
    norm, attention = reading.layer_norm(fields, bias=False), fields.mapping("attn_config")
    values: dict[str, Any] = {}
    if attention is not None:
        reading.refuse_if_true(attention, "prefix_lm", "rope")
        if attention.has("softmax_scale"):
            values["scale"] = attention.number("softmax_scale", 1e-6, 1e6)
        values["clip"] = attention.number("clip_qkv", 0, 1e6, default=0) or None
    layer = LayerSpec(
        mixer=reading.attention(fields, grouped=False, rope=None, alibi=ALiBiSpec(), **values),
        feed_forward=reading.plain_mlp(fields.without("intermediate_size"), bias=False),
        norms=reading.norms_before(norm),
    )
    head = HeadSpec(fields.boolean("tie_word_embeddings", True))
    return reading.model(fields, MPT.architecture, reading.repeated(fields, layer), norm=norm, head=head, names=_NAMES)


MPT = Family(
    architecture="MptForCausalLM",
    model_type="mpt",
    read=_read,
    aliases={
        "d_model": "hidden_size",
        "n_heads": "num_attention_heads",
        "n_layers": "num_hidden_layers",
        "max_seq_len": "max_position_embeddings",
        "layer_norm_epsilon": "layer_norm_eps",
    },
    defaults={
        "vocab_size": 50368,
        "hidden_size": 2048,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "max_position_embeddings": 2048,
        "layer_norm_eps": 1e-5,
        "hidden_act": "gelu",
        "tie_word_embeddings": True,
    },
    without_effect=frozenset({"logit_scale"}),  # transformers has the field, and does not read it
)
MPT_PUBLISHED = replace(MPT, architecture="MPTForCausalLM")
"""The class that MosaicML's files name; transformers finds its own by `model_type`."""
