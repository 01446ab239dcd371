"""Command R7B and Command A of Cohere (arXiv 2504.00698): Command R with a sliding window in most layers.

By default three of four layers have a window and Command R's RoPE; the others see all tokens and have no RoPE.
"""

from __future__ import annotations

from dataclasses import replace

from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import AttentionSpec, HeadSpec, LayerNorms, LayerSpec, ModelSpec


def _read(fields: Fields) -> ModelSpec:
    norm, period = reading.layer_norm(fields, bias=False), fields.integer("sliding_window_pattern", 1, 4096)
    layers = tuple(
        parallel_layer(fields, _mixer(fields, window))
        for window in reading.windows(fields, default=lambda layer: (layer + 1) % period != 0)
    )
    head = HeadSpec(fields.boolean("tie_word_embeddings", True), scale=fields.number("logit_scale", 1e-6, 1e6))
    return reading.model(fields, COHERE2.architecture, layers, norm=norm, head=head)


def parallel_layer(fields: Fields, mixer: AttentionSpec) -> LayerSpec:
    """Return a layer whose mixer and gated feed-forward both read the result of one LayerNorm."""
    norms = LayerNorms(before_mixer=reading.layer_norm(fields, bias=False))
    return LayerSpec(mixer=mixer, feed_forward=reading.mlp(fields), norms=norms, parallel=True)


def _mixer(fields: Fields, window: int | None) -> AttentionSpec:
    bias = fields.boolean("attention_bias", False)
    mixer = reading.attention(fields, qkv_bias=bias, output_bias=bias, window=window)
    return replace(mixer, rope=None) if window is None else reading.interleaved(mixer)


COHERE2 = Family(
    architecture="Cohere2ForCausalLM",
    model_type="cohere2",
    read=_read,
    defaults={
        "hidden_act": "silu",
        "layer_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 8192,
        "attention_bias": False,
        "sliding_window": 4096,
        "sliding_window_pattern": 4,
        "logit_scale": 0.0625,
        "tie_word_embeddings": True,
        "eos_token_id": 255001,
    },
)
