"""Reads the config.json of encoders like BERT, which have norms after attention and feed-forward, and no KV cache.

A checkpoint has one of three forms: the encoder alone, the encoder with a head for masked language modelling, which is
not read, or the encoder with a classification head.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from octavo_engine.model.checkpoint.names import StoredNames
from octavo_engine.model.families import reading
from octavo_engine.model.families.classes import classifier
from octavo_engine.model.families.encoder_kind import EncoderKind, task_kinds
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import (
    ClassifierSpec,
    HeadTransformSpec,
    LayerNorms,
    LayerSpec,
    ModelSpec,
    PositionSpec,
)

_UNREAD = (
    "embeddings.position_ids",
    "cls.",
    "predictions.",
    "sop_classifier.",
    "lm_head.",
    "vocab_",
    "qa_outputs.",
    "discriminator_predictions.",
)
"""Prefixes of tensors that are not read: position ids, and the heads of pretraining and of question answering."""
OLD_NORM_ENDINGS = ((".LayerNorm.gamma", ".LayerNorm.weight"), (".LayerNorm.beta", ".LayerNorm.bias"))


def encoder_families(kind: EncoderKind, stem: str, model_type: str, **values: Any) -> tuple[Family, ...]:
    """Return the families of all three forms of an encoder, whose class names begin with `stem`."""
    return tuple(
        Family(
            architecture=f"{stem}{ending}",
            model_type=model_type,
            read=partial(_read, kind, f"{stem}{ending}"),
            **values,
        )
        for ending in ("Model", "ForMaskedLM", "ForSequenceClassification")
    )


def _read(kind: EncoderKind, architecture: str, fields: Fields) -> ModelSpec:
    reading.refuse_if_true(fields, "is_decoder", "add_cross_attention")
    mixer, mlp = kind.parts(fields)
    norm = reading.layer_norm(fields, bias=True)
    layer = LayerSpec(
        mixer=mixer,
        feed_forward=mlp,
        norms=LayerNorms(after_mixer=norm, after_feed_forward=norm, after_adding=True),
    )
    layers, size = reading.repeated(fields, layer), kind.embedding_size(fields)
    if kind.shared_layers:
        layers = (layer, *(replace(other, weights_of_layer=0) for other in layers[1:]))
    spec = reading.model(
        fields,
        architecture,
        layers,
        norm=None,
        head=None,
        classifier=_classifier(kind, fields) if _classifies(architecture) else None,
        embedding_norm=norm,
        embedding_size=size,
        projected_last=size is not None,
        token_types=fields.integer("type_vocab_size", 0, 1 << 16),
        task_kinds=task_kinds(fields),
        names=replace(kind.names, classifier_dense=kind.head[0], classifier=kind.head[1]),
        stored_names=_stored_names(kind, architecture),
    )
    return spec if kind.first_position is None else _with_positions(spec, kind.first_position(fields), fields)


def _with_positions(spec: ModelSpec, first: int, fields: Fields) -> ModelSpec:
    """Return `spec` with a table of positions whose row `first` is position 0."""
    if spec.max_position <= first:
        raise fields.wrong("max_position_embeddings", spec.max_position, f"leaves no row after the first {first}")
    positions = PositionSpec(offset=first, uncounted=first - 1 if first else None)
    return replace(spec, positions=positions, max_position=spec.max_position - first)


def _classifies(architecture: str) -> bool:
    return architecture.endswith("ForSequenceClassification")


def _classifier(kind: EncoderKind, fields: Fields) -> ClassifierSpec:
    transform = HeadTransformSpec(bias=True, activation=kind.activation, norm=None)
    return classifier(fields, pooling="cls", bias=True, transform=transform)


def _stored_names(kind: EncoderKind, architecture: str) -> StoredNames:
    """Return the names in files; a pooler is read only where it is a part of the classification head."""
    heads: tuple[str, ...] = ("pooler.", "classifier.", "pre_classifier.")
    if _classifies(architecture):  # old files of RoBERTa have a pooler that nothing reads
        heads = () if kind.head[0].startswith("pooler") else ("pooler.",)
    renamed = tuple((prefix, "") for prefix in kind.prefixes)
    return StoredNames(renamed=renamed, endings=OLD_NORM_ENDINGS, ignored=(*_UNREAD, *heads))
