"""UltraBERT: EuroBERT with a sliding window in two of three layers, and a RoPE for each type of layers."""

from __future__ import annotations

from functools import partial

from octavo_engine.model.families import reading
from octavo_engine.model.families.classes import classifier
from octavo_engine.model.families.eurobert import encoder
from octavo_engine.model.families.family import Family
from octavo_engine.model.families.ultrabert_fields import with_fields_by_type
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import ClassifierSpec, ModelSpec


def _read(architecture: str, fields: Fields) -> ModelSpec:
    fields = with_fields_by_type(fields)
    windows = reading.windows(fields, default=lambda _: False)
    classes = _classifier(fields) if architecture.endswith("ForSequenceClassification") else None
    seen = [None if window is None else window + 1 for window in windows]  # here the token itself counts
    return encoder(fields, architecture, classes, seen)


def _classifier(fields: Fields) -> ClassifierSpec:
    pooling = fields.text("classifier_pooling")
    if pooling not in ("cls", "mean"):
        raise fields.wrong("classifier_pooling", pooling, "is neither cls nor mean")
    return classifier(fields, pooling=pooling, bias=True)


_DEFAULTS = {"hidden_act": "silu", "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "sliding_window": 128}
ULTRABERT_FAMILIES = tuple(
    Family(
        architecture=architecture,
        model_type="ultrabert",
        read=partial(_read, architecture),
        defaults={**_DEFAULTS, "classifier_pooling": "cls"},
    )
    for architecture in ("UltrabertModel", "UltrabertForMaskedLM", "UltrabertForSequenceClassification")
)
