"""EuroBERT (arXiv 2503.05500): Llama as an encoder, in which each token also sees the tokens after it."""

from __future__ import annotations

from functools import partial
from typing import Literal

from octavo_engine.model.families import reading
from octavo_engine.model.families.classes import classifier
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.names import StoredNames, TensorNames
from octavo_engine.model.spec import ClassifierSpec, HeadTransformSpec, LayerSpec, ModelSpec

_NAMES = TensorNames(classifier="classifier", classifier_dense="dense")
_POOLING: dict[str, Literal["cls", "mean"]] = {"bos": "cls", "mean": "mean", "late": "mean"}
_MODULES = ("embed_tokens.", "layers.", "norm.")


def _read(architecture: str, fields: Fields) -> ModelSpec:
    norm = reading.rms_norm(fields)
    bias, mlp_bias = fields.boolean("attention_bias", False), fields.boolean("mlp_bias", False)
    layer = LayerSpec(
        mixer=reading.attention(fields, causal=False, qkv_bias=bias, output_bias=bias),
        feed_forward=reading.mlp(fields, bias=mlp_bias, output_bias=mlp_bias),
        norms=reading.norms_before(norm),
    )
    return reading.model(
        fields,
        architecture,
        reading.repeated(fields, layer),
        norm=norm,
        head=None,
        classifier=_classifier(fields) if architecture.endswith("ForSequenceClassification") else None,
        names=_NAMES,
        stored_names=StoredNames(
            renamed=tuple((module, f"model.{module}") for module in _MODULES), ignored=("lm_head.",)
        ),
    )


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
