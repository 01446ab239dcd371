"""BERT (arXiv 1810.04805), RoBERTa (arXiv 1907.11692) and their like: encoders with learned positions and norms after
each part. They give vectors; with a head that classifies, classes or the score of a pair."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from octavo_engine.model.families import reading
from octavo_engine.model.families.classes import classifier
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.names import StoredNames, TensorNames
from octavo_engine.model.spec import ClassifierSpec, HeadTransformSpec, LayerNorms, LayerSpec, ModelSpec, PositionSpec

_LAYER = "encoder.layer.{layer}"
_NAMES = TensorNames(
    embedding="embeddings.word_embeddings",
    positions="embeddings.position_embeddings",
    text_kinds="embeddings.token_type_embeddings",
    embedding_norm="embeddings.LayerNorm",
    attention=f"{_LAYER}.attention",
    query=f"{_LAYER}.attention.self.query",
    key=f"{_LAYER}.attention.self.key",
    value=f"{_LAYER}.attention.self.value",
    output=f"{_LAYER}.attention.output.dense",
    after_mixer=f"{_LAYER}.attention.output.LayerNorm",
    up=f"{_LAYER}.intermediate.dense",
    down=f"{_LAYER}.output.dense",
    after_feed_forward=f"{_LAYER}.output.LayerNorm",
)
_UNREAD = ("embeddings.position_ids", "cls.", "lm_head.", "vocab_", "qa_outputs.")
"""Numbers of positions, and heads that guess masked tokens."""
_DEFAULTS: dict[str, Any] = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """By what the models of this file differ."""

    prefix: str
    """Before the names of the encoder's tensors where it is a part of a model with a head."""
    names: TensorNames = _NAMES
    first_position: Callable[[Fields], int] = lambda _: 0
    """The row of the first token's position."""
    head: tuple[str, str] = ("pooler.dense", "classifier")
    """The linear and the product of the head that classifies."""
    activation: str = "tanh"
    """Between them."""


_BERT = _Kind(prefix="bert.")


def _read(kind: _Kind, architecture: str, fields: Fields) -> ModelSpec:
    reading.refuse_if_true(fields, "is_decoder", "add_cross_attention", "sinusoidal_pos_embds")
    if fields.text("position_embedding_type", "absolute") != "absolute":
        name = "position_embedding_type"
        raise fields.wrong(name, fields.values[name], "is not supported, only absolute")
    norm, first = reading.layer_norm(fields, bias=True), kind.first_position(fields)
    layer = LayerSpec(
        mixer=reading.attention(fields, grouped=False, rope=None, causal=False, qkv_bias=True, output_bias=True),
        feed_forward=reading.plain_mlp(fields, bias=True),
        norms=LayerNorms(after_mixer=norm, after_feed_forward=norm, after_adding=True),
    )
    spec = reading.model(
        fields,
        architecture,
        reading.repeated(fields, layer),
        norm=None,
        head=None,
        classifier=_classifier(kind, fields) if _classifies(architecture) else None,
        embedding_norm=norm,
        positions=PositionSpec(offset=first, uncounted=first - 1 if first else None),
        token_types=fields.integer("type_vocab_size", 0, 1 << 16),
        names=replace(kind.names, classifier_dense=kind.head[0], classifier=kind.head[1]),
        stored_names=_stored_names(kind, architecture),
    )
    if spec.max_position <= first:
        raise fields.wrong("max_position_embeddings", spec.max_position, f"leaves no row behind the first {first}")
    return replace(spec, max_position=spec.max_position - first)


def _classifies(architecture: str) -> bool:
    return architecture.endswith("ForSequenceClassification")


def _classifier(kind: _Kind, fields: Fields) -> ClassifierSpec:
    transform = HeadTransformSpec(bias=True, activation=kind.activation, norm=None)
    return classifier(fields, pooling="cls", bias=True, transform=transform)


def _stored_names(kind: _Kind, architecture: str) -> StoredNames:
    """A pooler is read where it belongs to the head: what is pooled here is another vector."""
    heads: tuple[str, ...] = ("pooler.", "classifier.", "pre_classifier.")
    if _classifies(architecture):  # old files of RoBERTa have a pooler that nothing reads
        heads = () if kind.head[0].startswith("pooler.") else ("pooler.",)
    old = ((".LayerNorm.gamma", ".LayerNorm.weight"), (".LayerNorm.beta", ".LayerNorm.bias"))
    return StoredNames(renamed=((kind.prefix, ""),), endings=old, ignored=(*_UNREAD, *heads))


def _families(kind: _Kind, stem: str, model_type: str, **values: Any) -> tuple[Family, ...]:
    """The encoder alone, with the head that guesses masked tokens, which is not read, and with one that classifies."""
    defaults = {**_DEFAULTS, **values.pop("defaults", {})}
    return tuple(
        Family(
            architecture=f"{stem}{ending}",
            model_type=model_type,
            read=partial(_read, kind, f"{stem}{ending}"),
            defaults=defaults,
            **values,
        )
        for ending in ("Model", "ForMaskedLM", "ForSequenceClassification")
    )


def _behind_padding(fields: Fields) -> int:
    """RoBERTa's rows up to that of padding stand for no position."""
    return fields.integer("pad_token_id", 0, 1 << 26) + 1


_ROBERTA = _Kind(prefix="roberta.", first_position=_behind_padding, head=("classifier.dense", "classifier.out_proj"))
_DISTIL_LAYER = "transformer.layer.{layer}"
_DISTILBERT = _Kind(
    prefix="distilbert.",
    names=replace(
        _NAMES,
        attention=f"{_DISTIL_LAYER}.attention",
        query=f"{_DISTIL_LAYER}.attention.q_lin",
        key=f"{_DISTIL_LAYER}.attention.k_lin",
        value=f"{_DISTIL_LAYER}.attention.v_lin",
        output=f"{_DISTIL_LAYER}.attention.out_lin",
        after_mixer=f"{_DISTIL_LAYER}.sa_layer_norm",
        up=f"{_DISTIL_LAYER}.ffn.lin1",
        down=f"{_DISTIL_LAYER}.ffn.lin2",
        after_feed_forward=f"{_DISTIL_LAYER}.output_layer_norm",
    ),
    head=("pre_classifier", "classifier"),
    activation="relu",
)
_DISTIL_ALIASES = {
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "hidden_dim": "intermediate_size",
    "activation": "hidden_act",
}
_PADDED = {"pad_token_id": 1}

BERT_FAMILIES = (
    *_families(_BERT, "Bert", "bert"),
    *_families(_ROBERTA, "Roberta", "roberta", defaults=_PADDED),
    *_families(_ROBERTA, "XLMRoberta", "xlm-roberta", defaults=_PADDED),
    *_families(_ROBERTA, "Camembert", "camembert", defaults=_PADDED),
    *_families(
        _DISTILBERT,
        "DistilBert",
        "distilbert",
        aliases=_DISTIL_ALIASES,
        defaults={"type_vocab_size": 0, "num_hidden_layers": 6},
    ),
)
