"""EuroBERT (arXiv 2503.05500): Llama as an encoder, in which each token also sees the tokens after it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal

from octavo_engine.model.checkpoint.names import StoredNames, TensorNames
from octavo_engine.model.families import reading
from octavo_engine.model.families.classes import classifier
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import ClassifierSpec, HeadTransformSpec, LayerSpec, ModelSpec

_NAMES = TensorNames(classifier="classifier", classifier_dense="dense")
_POOLING: dict[str, Literal["cls", "mean"]] = {"bos": "cls", "mean": "mean", "late": "mean"}
_MODULES = ("embed_tokens.", "layers.", "norm.")


def encoder(
    fields: Fields, architecture: str, classes: ClassifierSpec | None, windows: Sequence[int | None] | None = None
) -> ModelSpec:
    """Return Llama as an encoder; `windows`: of each layer, which then has the RoPE of its type."""
    norm = reading.rms_norm(fields)
    bias, mlp_bias = fields.boolean("attention_bias", False), fields.boolean("mlp_bias", False)
    layers = tuple(
        LayerSpec(
            mixer=reading.attention(
                fields,
                layer_type=None if windows is None else reading.layer_type(window),
                causal=False,
                window=window,
                qkv_bias=bias,
                output_bias=bias,
            ),
            feed_forward=reading.mlp(fields, bias=mlp_bias, output_bias=mlp_bias),
            norms=reading.norms_before(norm),
        )
        for window in windows or (None,) * reading.num_layers(fields)
    )
    return reading.model(
        fields,
        architecture,
        layers,
        norm=norm,
        head=None,
        classifier=classes,
        names=_NAMES,
        stored_names=StoredNames(
            renamed=(("ultrabert.", "model."), *((module, f"model.{module}") for module in _MODULES)),
            ignored=("lm_head.", "head."),
        ),
    )


def _read(architecture: str, fields: Fields) -> ModelSpec:
    classifies = architecture.endswith("ForSequenceClassification")
    return encoder(fields, architecture, _classifier(fields) if classifies else None)


def _classifier(fields: Fields) -> ClassifierSpec:
    """Read the classifier of a pooled vector; `late` pools after the first linear instead of before it."""
    name = "classifier_pooling"
    if (pooling := fields.text(name)) not in _POOLING:
        raise fields.wrong(name, pooling, f"is not supported; supported: {', '.join(_POOLING)}")
    transform = HeadTransformSpec(bias=True, activation="gelu", norm=None)
    values = {"bias": True, "transform": transform, "transforms_tokens": pooling == "late"}
    return classifier(fields, pooling=_POOLING[pooling], **values)


EUROBERT_FAMILIES = tuple(
    Family(
        architecture=f"EuroBert{ending}",
        model_type="eurobert",
        read=partial(_read, f"EuroBert{ending}"),
        defaults={
            "vocab_size": 128256,
            "hidden_size": 768,
            "intermediate_size": 3072,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "hidden_act": "silu",
            "max_position_embeddings": 8192,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "classifier_pooling": "late",
        },
    )
    for ending in ("Model", "ForMaskedLM", "ForSequenceClassification")
)
