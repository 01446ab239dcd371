"""CTRL of Salesforce (arXiv 1909.05858): a decoder with sinusoidal positions (arXiv 1706.03762) instead of RoPE.

Sines and cosines of a token's position are added to its scaled embedding. Norms are LayerNorm, linears have biases, and
the feed-forward has ReLU and no gate. The head has the embedding's weight and a bias.
"""

from __future__ import annotations

from octavo_engine.model.checkpoint.names import TensorNames, base_model_names
from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.families.gpt2 import GPT2_ALIASES
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import HeadSpec, LayerSpec, MLPSpec, ModelSpec, NormSpec, PositionSpec

_ATTENTION = "transformer.h.{layer}.multi_head_attention"
_NAMES = TensorNames(
    embedding="transformer.w",
    positions="transformer.pos_encoding",
    norm="transformer.layernorm",
    before_mixer="transformer.h.{layer}.layernorm1",
    before_feed_forward="transformer.h.{layer}.layernorm2",
    query=f"{_ATTENTION}.Wq",
    key=f"{_ATTENTION}.Wk",
    value=f"{_ATTENTION}.Wv",
    output=f"{_ATTENTION}.dense",
    attention=_ATTENTION,
    up="transformer.h.{layer}.ffn.0",
    down="transformer.h.{layer}.ffn.2",
)
_LAYER_NORM = NormSpec(1e-6, "layer", bias=True)
"""The norms in layers; the epsilon in config.json is that of the last norm alone."""


def _read(fields: Fields) -> ModelSpec:
    width = reading.intermediate_size(fields, "dff")
    layer = LayerSpec(
        mixer=reading.attention(fields, grouped=False, rope=None, qkv_bias=True, output_bias=True),
        feed_forward=MLPSpec(intermediate_size=width, activation="relu", gated=False, bias=True, output_bias=True),
        norms=reading.norms_before(_LAYER_NORM),
    )
    return reading.model(
        fields,
        CTRL.architecture,
        reading.repeated(fields, layer),
        norm=reading.layer_norm(fields, bias=True),
        embedding_scale=reading.hidden_size(fields) ** 0.5,
        positions=PositionSpec(sinusoidal=True, whole_range=False),
        head=HeadSpec(fields.boolean("tie_word_embeddings", True), bias=True),
        names=_NAMES,
        stored_names=base_model_names("transformer.", "w.", "h.", "layernorm."),
    )


CTRL = Family(
    architecture="CTRLLMHeadModel",
    model_type="ctrl",
    read=_read,
    aliases=GPT2_ALIASES,
    defaults={
        "vocab_size": 246534,
        "hidden_size": 1280,
        "max_position_embeddings": 256,
        "dff": 8192,
        "num_hidden_layers": 48,
        "num_attention_heads": 16,
        "layer_norm_eps": 1e-6,
    },
)
