"""RecurrentGemma of Google (Griffin, arXiv 2402.19427): gated linear recurrences, and attention in every third layer.

Attention has a sliding window, so that no layer's memory grows with the context, and by default RoPE on half of each
head. Embeddings and norms are Gemma's.
"""

from __future__ import annotations

import torch

from octavo_engine.model.checkpoint.names import TensorNames
from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.families.state_space import NO_LENGTH
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import AttentionSpec, GatedRecurrenceSpec, HeadSpec, LayerSpec, Mixer, ModelSpec

_BLOCK = "model.layers.{layer}.temporal_block"
_MLP = "model.layers.{layer}.mlp_block"
_NAMES = TensorNames(
    norm="model.final_norm",
    before_mixer="model.layers.{layer}.temporal_pre_norm",
    before_feed_forward="model.layers.{layer}.channel_pre_norm",
    attention=_BLOCK,
    query=f"{_BLOCK}.q_proj",
    key=f"{_BLOCK}.k_proj",
    value=f"{_BLOCK}.v_proj",
    output=f"{_BLOCK}.o_proj",
    mamba=_BLOCK,
    gate=f"{_MLP}.gate_proj",
    up=f"{_MLP}.up_proj",
    down=f"{_MLP}.down_proj",
)


def _read(fields: Fields) -> ModelSpec:
    norm, act = reading.rms_norm(fields, weight_offset=1.0), reading.activation(fields, "hidden_activation")
    kinds, count = _kinds(fields), reading.num_layers(fields)
    width = reading.intermediate_size(fields) // 2
    mixers: dict[bool, Mixer] = {True: _attention(fields), False: _recurrence(fields, act)}
    layers = tuple(
        LayerSpec(
            mixer=mixers[kinds[layer % len(kinds)] == "attention"],
            feed_forward=reading.mlp(fields, activation=act, intermediate_size=width, bias=True, output_bias=True),
            norms=reading.norms_before(norm),
        )
        for layer in range(count)
    )
    scale = torch.tensor(reading.hidden_size(fields) ** 0.5, dtype=torch.bfloat16).item()
    head = HeadSpec(fields.boolean("tie_word_embeddings", True), softcap=reading.softcap(fields, "logits_soft_cap"))
    return reading.model(
        fields, RECURRENT_GEMMA.architecture, layers, norm=norm, embedding_scale=scale, head=head, names=_NAMES
    )


def _kinds(fields: Fields) -> list[str]:
    """Return the kinds of the first layers; the others repeat them."""
    kinds = fields.values.get("block_types")
    if not isinstance(kinds, list) or not kinds or set(map(str, kinds)) - {"recurrent", "attention"}:
        raise fields.wrong("block_types", kinds, "is not a list of recurrent and attention")
    return kinds


def _attention(fields: Fields) -> AttentionSpec:
    return reading.attention(
        fields,
        partial_rotary=True,
        qkv_bias=fields.boolean("attention_bias", False),
        output_bias=True,
        window=fields.integer("attention_window_size", 1, 1 << 30),
    )


def _recurrence(fields: Fields, activation: str) -> GatedRecurrenceSpec:
    heads = fields.integer("num_attention_heads", 1, 1 << 16)
    channels = fields.integer("lru_width", 1, 1 << 20, default=reading.hidden_size(fields))
    if channels % heads:
        raise fields.wrong("lru_width", channels, f"is not a multiple of num_attention_heads {heads}")
    width = fields.integer("conv1d_width", 2, 64)
    return GatedRecurrenceSpec(num_heads=heads, head_dim=channels // heads, width=width, activation=activation)


RECURRENT_GEMMA = Family(
    architecture="RecurrentGemmaForCausalLM",
    model_type="recurrent_gemma",
    read=_read,
    defaults={
        **NO_LENGTH,
        "num_hidden_layers": 26,
        "vocab_size": 256000,
        "hidden_size": 2560,
        "intermediate_size": 7680,
        "num_attention_heads": 10,
        "attention_window_size": 2048,
        "conv1d_width": 4,
        "logits_soft_cap": 30.0,
        "rms_norm_eps": 1e-6,
        "hidden_activation": "gelu_pytorch_tanh",
        "partial_rotary_factor": 0.5,
        "rope_theta": 10000.0,
        "block_types": ["recurrent", "recurrent", "attention"],
        "eos_token_id": 1,
    },
)
