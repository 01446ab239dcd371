"""ModernBERT (arXiv 2412.13663): an encoder with RoPE, gated feed-forwards, norms before each part, and windows in two
layers of three."""

from __future__ import annotations

from functools import partial
from typing import Any

from octavo_engine.model.families import reading
from octavo_engine.model.families.classes import classifier
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.names import StoredNames, TensorNames
from octavo_engine.model.spec import ClassifierSpec, HeadTransformSpec, LayerNorms, LayerSpec, ModelSpec, NormSpec

_LAYER = "layers.{layer}"
_NAMES = TensorNames(
    embedding="embeddings.tok_embeddings",
    embedding_norm="embeddings.norm",
    before_mixer=f"{_LAYER}.attn_norm",
    attention=f"{_LAYER}.attn",
    query=f"{_LAYER}.attn.Wqkv",
    key=f"{_LAYER}.attn.Wqkv",
    value=f"{_LAYER}.attn.Wqkv",
    output=f"{_LAYER}.attn.Wo",
    before_feed_forward=f"{_LAYER}.mlp_norm",
    gate=f"{_LAYER}.mlp.Wi",
    up=f"{_LAYER}.mlp.Wi",
    down=f"{_LAYER}.mlp.Wo",
    norm="final_norm",
    classifier="classifier",
    classifier_dense="head.dense",
    classifier_norm="head.norm",
)


def _read(architecture: str, fields: Fields) -> ModelSpec:
    norm = reading.layer_norm(fields, bias=fields.boolean("norm_bias", False), eps="norm_eps")
    bias, mlp_bias = fields.boolean("attention_bias", False), fields.boolean("mlp_bias", False)
    to_each_side = fields.integer("local_attention", 2, 1 << 30) // 2
    fields = Fields(fields.origin, {**fields.values, "sliding_window": to_each_side + 1}, read=fields.read)
    period = fields.integer("global_attn_every_n_layers", 1, 4096)
    act = reading.activation(fields, "hidden_activation")
    mlp = reading.mlp(fields, activation=act, bias=mlp_bias, output_bias=mlp_bias)
    layers = tuple(
        LayerSpec(
            mixer=reading.attention(
                fields,
                layer_type=reading.layer_type(window),
                grouped=False,
                causal=False,
                qkv_bias=bias,
                output_bias=bias,
                window=window,
            ),
            feed_forward=mlp,
            norms=LayerNorms(before_mixer=norm if layer else None, before_feed_forward=norm),
        )
        for layer, window in enumerate(reading.windows(fields, default=lambda layer: layer % period != 0))
    )
    classifies = architecture.endswith("ForSequenceClassification")
    heads = ("decoder.",) if classifies else ("decoder.", "head.", "classifier.")
    return reading.model(
        fields,
        architecture,
        layers,
        norm=norm,
        embedding_norm=norm,
        head=None,
        classifier=_classifier(fields, norm) if classifies else None,
        names=_NAMES,
        stored_names=StoredNames(renamed=(("model.", ""),), ignored=heads),
    )


def _classifier(fields: Fields, norm: NormSpec) -> ClassifierSpec:
    pooling = fields.text("classifier_pooling", "cls")
    if pooling not in ("cls", "mean"):
        raise fields.wrong("classifier_pooling", pooling, "is neither cls nor mean")
    transform = HeadTransformSpec(
        bias=fields.boolean("classifier_bias", False),
        activation=reading.activation(fields, "classifier_activation"),
        norm=norm,
    )
    return classifier(fields, pooling=pooling, bias=True, transform=transform)


_DEFAULTS: dict[str, Any] = {
    "vocab_size": 50368,
    "hidden_size": 768,
    "intermediate_size": 1152,
    "num_hidden_layers": 22,
    "num_attention_heads": 12,
    "hidden_activation": "gelu",
    "max_position_embeddings": 8192,
    "norm_eps": 1e-5,
    "rope_theta": 160000.0,
    "rope_local_base_freq": 10000.0,
    "local_attention": 128,
    "global_attn_every_n_layers": 3,
    "classifier_activation": "gelu",
}

MODERNBERT_FAMILIES = tuple(
    Family(
        architecture=f"ModernBert{ending}",
        model_type="modernbert",
        read=partial(_read, f"ModernBert{ending}"),
        aliases={"global_rope_theta": "rope_theta", "local_rope_theta": "rope_local_base_freq"},
        defaults=_DEFAULTS,
    )
    for ending in ("Model", "ForMaskedLM", "ForSequenceClassification")
)
