"""ModernBERT (arXiv 2412.13663): an encoder with RoPE, gated feed-forwards, and a sliding window in most layers.

Norms stand before attention and feed-forward, unlike BERT's.
"""

from __future__ import annotations

from functools import partial

from octavo_engine.model.checkpoint.names import StoredNames, TensorNames
from octavo_engine.model.families import reading
from octavo_engine.model.families.classes import classifier
from octavo_engine.model.families.family import Family
from octavo_engine.model.families.modernbert_layers import ALIASES, DEFAULTS, head_transform, layers, norm_of
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import ClassifierSpec, ModelSpec

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
    norm, to_each_side = norm_of(fields), fields.integer("local_attention", 2, 1 << 30) // 2
    classifies = architecture.endswith("ForSequenceClassification")
    heads = ("decoder.",) if classifies else ("decoder.", "head.", "classifier.")
    return reading.model(
        fields,
        architecture,
        layers(fields, to_each_side + 1, causal=False),
        norm=norm,
        embedding_norm=norm,
        head=None,
        classifier=_classifier(fields) if classifies else None,
        names=_NAMES,
        stored_names=StoredNames(renamed=(("model.", ""),), ignored=heads),
    )


def _classifier(fields: Fields) -> ClassifierSpec:
    pooling = fields.text("classifier_pooling", "cls")
    if pooling not in ("cls", "mean"):
        raise fields.wrong("classifier_pooling", pooling, "is neither cls nor mean")
    return classifier(fields, pooling=pooling, bias=True, transform=head_transform(fields))


MODERNBERT_FAMILIES = tuple(
    Family(
        architecture=f"ModernBert{ending}",
        model_type="modernbert",
        read=partial(_read, f"ModernBert{ending}"),
        aliases=ALIASES,
        defaults=DEFAULTS,
    )
    for ending in ("Model", "ForMaskedLM", "ForSequenceClassification")
)
