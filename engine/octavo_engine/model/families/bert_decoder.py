"""Reads the config.json of BERT and of models of its shape as decoders: each token sees only itself and earlier ones.

The head is BERT's: a linear, an activation and a norm before the product with the vocabulary.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from octavo_engine.model.checkpoint.names import StoredNames
from octavo_engine.model.families import reading
from octavo_engine.model.families.bert import BERT_NAMES
from octavo_engine.model.families.encoder import OLD_NORM_ENDINGS
from octavo_engine.model.families.encoder_kind import task_kinds
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import (
    AttentionSpec,
    HeadSpec,
    HeadTransformSpec,
    LayerNorms,
    LayerSpec,
    MLPSpec,
    ModelSpec,
    PositionSpec,
)

_HEAD = "cls.predictions"
BERT_DECODER_NAMES = replace(
    BERT_NAMES, embedding_in="embeddings_project", head=f"{_HEAD}.decoder", head_transform=f"{_HEAD}.transform"
)
_RENAMED = (
    (f"{_HEAD}.bias", f"{_HEAD}.decoder.bias"),
    (f"{_HEAD}.transform.LayerNorm.", f"{_HEAD}.transform.norm."),
    ("cls.predictions.LayerNorm.", "cls.predictions.norm."),  # RemBERT has no module `transform`
    ("lm_head.bias", "lm_head.decoder.bias"),  # of BertGeneration
    ("roformer.", ""),
    ("rembert.", ""),
    ("electra.", ""),
    ("ernie.", ""),
    ("bert.", ""),
    ("generator_lm_head.", f"{_HEAD}.decoder."),
    ("generator_predictions.LayerNorm.", f"{_HEAD}.transform.norm."),
    ("generator_predictions.", f"{_HEAD}.transform."),
)
_UNREAD = ("embeddings.position_ids", "pooler.", "cls.seq_relationship.")


def bert_decoder(
    fields: Fields, architecture: str, attention: AttentionSpec, mlp: MLPSpec, size: int, **values: Any
) -> ModelSpec:
    """Return a decoder of these parts with BERT's norms and its head; `values` are further fields of ModelSpec.

    `size` is that of token embeddings, which are projected after their norm if it is not the hidden size, or if
    `values` say so (`projected_last`).
    """
    if not fields.boolean("is_decoder", False):
        raise fields.wrong("is_decoder", False, f"is not supported for {architecture}: tokens would see what follows")
    reading.refuse_if_true(fields, "add_cross_attention")
    norm = reading.layer_norm(fields, bias=True)
    after = LayerNorms(after_mixer=norm, after_feed_forward=norm, after_adding=True)
    values.setdefault("norms", after)
    layer = LayerSpec(mixer=replace(attention, causal=True), feed_forward=mlp, norms=values.pop("norms"))
    projected = values.get("projected_last", size != reading.hidden_size(fields))
    own = {
        "norm": None,
        "embedding_norm": norm,
        "embedding_size": size if projected else None,
        "projected_last": projected,
        "positions": PositionSpec(),
        "token_types": fields.integer("type_vocab_size", 1, 1 << 16),
        "task_kinds": task_kinds(fields),
        "head": bert_head(fields, mlp.activation),
        "names": BERT_DECODER_NAMES,
        "stored_names": StoredNames(renamed=_RENAMED, endings=OLD_NORM_ENDINGS, ignored=_UNREAD),
    }
    return reading.model(fields, architecture, reading.repeated(fields, layer), **own | values)


def bert_head(fields: Fields, activation: str, size: int | None = None) -> HeadSpec:
    """Return BERT's head; `size` is that of the vectors that its weight multiplies, None: that of embeddings."""
    norm = reading.layer_norm(fields, bias=True)
    transform = HeadTransformSpec(bias=True, activation=activation, norm=norm, size=size)
    return HeadSpec(fields.boolean("tie_word_embeddings", True), bias=True, transform=transform)


def embedding_size(fields: Fields) -> int:
    """Read the size of token embeddings, by default the hidden size."""
    return fields.integer("embedding_size", 1, 1 << 20, default=reading.hidden_size(fields))
