"""Apertus of the Swiss AI Initiative (arXiv 2509.14233): Llama with QK norm, and a feed-forward without a gate.

The activation of the feed-forward is xIELU, whose parameters each layer has learnt. Where a file says `"rope_scaling":
null`, RoPE is not scaled, as in the transformers that wrote it; transformers 5 takes null as the default. Apertus 1.5
also has embeddings of pieces of images and sound, for which its head may have no rows.
"""

from __future__ import annotations

from dataclasses import replace

from octavo_engine.model.checkpoint.names import TensorNames
from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import LayerSpec, ModelSpec, QKNormSpec

_NAMES = TensorNames(
    before_mixer="model.layers.{layer}.attention_layernorm",
    before_feed_forward="model.layers.{layer}.feedforward_layernorm",
)


def _read(fields: Fields) -> ModelSpec:
    norm, bias = reading.rms_norm(fields), fields.boolean("attention_bias", False)
    activation = "xielu" if fields.text("hidden_act") == "xielu" else reading.activation(fields)
    layer = LayerSpec(
        mixer=reading.attention(fields, qkv_bias=bias, output_bias=bias, qk_norm=QKNormSpec(norm)),
        feed_forward=reading.mlp(fields, gated=False, activation=activation),
        norms=reading.norms_before(norm),
    )
    return reading.model(fields, APERTUS.architecture, reading.repeated(fields, layer), norm=norm, names=_NAMES)


def _read_1p5(fields: Fields) -> ModelSpec:
    spec, of_head = replace(_read(fields), architecture=APERTUS1P5.architecture), "output_vocab_size"
    kept = fields.integer(of_head, 1, spec.vocab_size, default=spec.vocab_size)
    if kept == spec.vocab_size:
        return spec
    if fields.boolean("tie_word_embeddings", False):
        raise fields.wrong(of_head, kept, f"is not vocab_size {spec.vocab_size}, although the head is the embedding")
    ends = tuple(token for token in spec.eos_token_ids if token < kept)
    return replace(spec, vocab_size=kept, unread_embeddings=spec.vocab_size - kept, eos_token_ids=ends)


APERTUS = Family(
    architecture="ApertusForCausalLM",
    model_type="apertus",
    read=_read,
    defaults={
        "hidden_act": "xielu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 12e6,
        "max_position_embeddings": 65536,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "original_max_position_embeddings": 8192,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
        },
        "eos_token_id": 2,
    },
    nullable=frozenset({"rope_scaling"}),
)

APERTUS1P5 = replace(APERTUS, architecture="Apertus1p5TextForCausalLM", model_type="apertus1p5_text", read=_read_1p5)
