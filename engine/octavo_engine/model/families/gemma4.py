"""Google's Gemma 4: Gemma 3's layers without a scale of scores, larger heads where all tokens are seen, inputs for each
layer beside the residual stream; the last layers may read what earlier ones have cached."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from octavo_engine.model.families import kv_sharing, reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.names import TensorNames
from octavo_engine.model.spec import (
    AttentionSpec,
    HeadSpec,
    LayerNorms,
    LayerSpec,
    ModelSpec,
    NormSpec,
    PerLayerInputSpec,
    QKNormSpec,
)

_NAMES = TensorNames(before_feed_forward="model.layers.{layer}.pre_feedforward_layernorm")


def _read(fields: Fields) -> ModelSpec:
    reading.refuse_if_true(fields, "enable_moe_block")
    if fields.has("use_bidirectional_attention") and fields.text("use_bidirectional_attention") != "vision":
        raise fields.wrong("use_bidirectional_attention", "all", "is not supported")
    norm, activation = reading.rms_norm(fields), reading.activation(fields, "hidden_activation")
    windows = list(reading.windows(fields, default=lambda layer: (layer + 1) % 6 != 0))
    windows[-1] = None  # whatever layer_types says
    sources, mlp = kv_sharing.sources(fields, windows), reading.mlp(fields, activation=activation)
    doubled = fields.boolean("use_double_wide_mlp", False)
    wide = replace(mlp, intermediate_size=2 * mlp.intermediate_size) if doubled else mlp
    layers = tuple(
        LayerSpec(
            mixer=_mixer(fields, norm, window, layer, source),
            feed_forward=mlp if source is None else wide,
            norms=LayerNorms(before_mixer=norm, after_mixer=norm, before_feed_forward=norm, after_feed_forward=norm),
            per_layer_input=_per_layer_input(fields, norm, activation),
            output_scale=True,
        )
        for layer, (window, source) in enumerate(zip(windows, sources, strict=True))
    )
    head = HeadSpec(
        fields.boolean("tie_word_embeddings", True), softcap=reading.softcap(fields, "final_logit_softcapping")
    )
    scale = reading.hidden_size(fields) ** 0.5
    return reading.model(fields, GEMMA4.architecture, layers, norm=norm, embedding_scale=scale, head=head, names=_NAMES)


def _mixer(fields: Fields, norm: NormSpec, window: int | None, layer: int, source: int | None) -> AttentionSpec:
    bias, alike = fields.boolean("attention_bias", False), fields.boolean("attention_k_eq_v", False)
    return reading.attention(
        Fields(fields.origin, {**fields.values, **_overrides(fields, layer, window)}, read=fields.read),
        layer_type=reading.layer_type(window),
        scale=1.0,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=QKNormSpec(norm),
        value_norm=None if source is not None else NormSpec(norm.eps, weight=False),
        value_is_key=alike and window is None and source is None,
        kv_of_layer=source,
        window=window,
    )


def _overrides(fields: Fields, layer: int, window: int | None) -> dict[str, Any]:
    """The fields that one layer has of its own."""
    given = fields.mapping("per_layer_config")
    if given is None and window is None:
        of_its_own = fields.boolean("attention_k_eq_v", False) and fields.has("num_global_key_value_heads")
        heads = {"num_key_value_heads": fields.values["num_global_key_value_heads"]} if of_its_own else {}
        return {"head_dim": fields.integer("global_head_dim", 2, 1024, default=512), **heads}
    if given is None:
        return {}
    own = next((name for name in given.values if name.isdigit() and int(name) == layer), None)
    values = None if own is None else given.mapping(own)
    if values is None:
        return {}
    if unknown := sorted(values.values.keys() - {"head_dim", "num_key_value_heads"}):
        raise values.wrong(unknown[0], values.values[unknown[0]], "is not supported for one layer")
    return dict(values.values)


def _per_layer_input(fields: Fields, norm: NormSpec, activation: str) -> PerLayerInputSpec | None:
    size = fields.integer("hidden_size_per_layer_input", 0, 1 << 16)
    vocab_size = fields.integer("vocab_size_per_layer_input", 1, 1 << 26)
    return PerLayerInputSpec(size=size, vocab_size=vocab_size, activation=activation, norm=norm) if size else None


GEMMA4 = Family(
    architecture="Gemma4ForCausalLM",
    model_type="gemma4_text",
    read=_read,
    defaults={
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 131072,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
        },
        "sliding_window": 512,
        "hidden_size_per_layer_input": 256,
        "vocab_size_per_layer_input": 262144,
        "eos_token_id": 1,
    },
)
