"""The language model of Muse Glimmer of Meta: Gemma 2's norms and windows, gated heads, and layers without RoPE.

Queries and keys have norms without weights, as have embeddings; logits are scaled and softcapped.
"""

from __future__ import annotations

from dataclasses import replace

from octavo_engine.model.checkpoint.names import TensorNames
from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import (
    HeadSpec,
    LayerNorms,
    LayerSpec,
    ModelSpec,
    NormSpec,
    OutputGateSpec,
    QKNormSpec,
)

_NAMES = TensorNames(before_feed_forward="model.layers.{layer}.pre_feedforward_layernorm")


def _rotates(fields: Fields) -> list[bool]:
    """Return for each layer whether it has RoPE: where `layer_rope_theta` is not 0, or but for every fourth layer."""
    count, given = reading.num_layers(fields), fields.values.get("layer_rope_theta")
    if given is None:
        return [(count - 1 - layer) % 4 != 0 for layer in range(count)]
    if not isinstance(given, list) or len(given) != count:
        raise fields.wrong("layer_rope_theta", given, f"does not name {count} layers")
    return [bool(theta) for theta in given]


def _read(fields: Fields) -> ModelSpec:
    norm, bare = reading.rms_norm(fields, weight_offset=1.0), reading.rms_norm(fields, weight=False)
    after = NormSpec(fields.number("post_norm_eps", 0, 1), weight_offset=1.0)
    bias, count = fields.boolean("attention_bias", False), reading.num_layers(fields)
    windows = reading.windows(fields, default=lambda layer: (count - 1 - layer) % 4 != 0)
    mixer = reading.attention(
        fields,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=QKNormSpec(bare),
        output_gate=OutputGateSpec(),
    )
    mixer = replace(mixer, scale=mixer.scale * reading.scale(fields, "qk_scale_factor"))
    layers = tuple(
        LayerSpec(
            mixer=replace(mixer if rotates else reading.without_rope(mixer), window=window),
            feed_forward=reading.mlp(fields, activation=reading.activation(fields, "hidden_activation")),
            norms=LayerNorms(before_mixer=norm, after_mixer=after, before_feed_forward=norm, after_feed_forward=after),
        )
        for rotates, window in zip(_rotates(fields), windows, strict=True)
    )
    head = HeadSpec(
        fields.boolean("tie_word_embeddings", False),
        scale=reading.scale(fields, "output_multiplier"),
        softcap=reading.softcap(fields, "final_logit_softcapping"),
    )
    last = reading.rms_norm(fields)
    return reading.model(
        fields, MUSE_GLIMMER.architecture, layers, norm=last, embedding_norm=bare, head=head, names=_NAMES
    )


MUSE_GLIMMER = Family(
    architecture="MuseGlimmerTextForCausalLM",
    model_type="muse_glimmer_text",
    read=_read,
    defaults={
        "num_attention_heads": 32,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "hidden_activation": "silu",
        "rms_norm_eps": 1e-5,
        "post_norm_eps": 1e-8,
        "rope_theta": 10000.0,
        "max_position_embeddings": 131072,
        "sliding_window": 2048,
        "qk_scale_factor": 3.87,
        "output_multiplier": 0.19611613513818404,
        "final_logit_softcapping": 20.0,
        "eos_token_id": 200001,
    },
)
