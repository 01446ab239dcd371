"""OpenAI's first GPT: GPT-2 with norms of the residual stream after attention and feed-forward, and none at the end."""

from __future__ import annotations

from dataclasses import replace

from octavo_engine.model.checkpoint.names import base_model_names
from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.families.gpt2 import GPT2_ALIASES, GPT2_NAMES
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import HeadSpec, LayerNorms, LayerSpec, ModelSpec, PositionSpec

_NAMES = replace(
    GPT2_NAMES,
    embedding="transformer.tokens_embed",
    positions="transformer.positions_embed",
    after_mixer="transformer.h.{layer}.ln_1",
    after_feed_forward="transformer.h.{layer}.ln_2",
)
_ACTIVATIONS = {"gelu": "gelu_new", "relu": "relu", "silu": "silu", "swish": "silu"}


def _read(fields: Fields) -> ModelSpec:
    norm, name = reading.layer_norm(fields, bias=True), fields.text("hidden_act")
    if name not in _ACTIVATIONS:
        raise fields.wrong("afn", name, f"is not one of {', '.join(_ACTIVATIONS)}")
    feed_forward = reading.plain_mlp(fields.without("intermediate_size"), bias=True)
    layer = LayerSpec(
        mixer=reading.attention(fields, grouped=False, rope=None, qkv_bias=True, output_bias=True),
        feed_forward=replace(feed_forward, activation=_ACTIVATIONS[name]),
        norms=LayerNorms(after_mixer=norm, after_feed_forward=norm, after_adding=True),
    )
    return reading.model(
        fields,
        OPENAI_GPT.architecture,
        reading.repeated(fields, layer),
        norm=None,
        head=HeadSpec(fields.boolean("tie_word_embeddings", True)),
        positions=PositionSpec(),
        names=_NAMES,
        stored_names=base_model_names("transformer.", "h.", "tokens_embed.", "positions_embed."),
    )


OPENAI_GPT = Family(
    architecture="OpenAIGPTLMHeadModel",
    model_type="openai-gpt",
    read=_read,
    aliases={**GPT2_ALIASES, "afn": "hidden_act"},
    defaults={
        "vocab_size": 40478,
        "hidden_size": 768,
        "max_position_embeddings": 512,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-5,
    },
)
