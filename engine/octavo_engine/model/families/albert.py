"""ALBERT (arXiv 1909.11942): BERT whose layers all have the same weights, and whose token vectors are smaller."""

from __future__ import annotations

from dataclasses import replace

from octavo_engine.model.families.bert import BERT_DEFAULTS, BERT_NAMES, bert_parts
from octavo_engine.model.families.encoder import encoder_families
from octavo_engine.model.families.encoder_kind import EncoderKind, embedding_size
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import AttentionSpec, MLPSpec

_LAYER = "encoder.albert_layer_groups.0.albert_layers.0"
_NAMES = replace(
    BERT_NAMES,
    embedding_in="encoder.embedding_hidden_mapping_in",
    attention=f"{_LAYER}.attention",
    query=f"{_LAYER}.attention.query",
    key=f"{_LAYER}.attention.key",
    value=f"{_LAYER}.attention.value",
    output=f"{_LAYER}.attention.dense",
    after_mixer=f"{_LAYER}.attention.LayerNorm",
    up=f"{_LAYER}.ffn",
    down=f"{_LAYER}.ffn_output",
    after_feed_forward=f"{_LAYER}.full_layer_layer_norm",
)


def _parts(fields: Fields) -> tuple[AttentionSpec, MLPSpec]:
    for name in ("num_hidden_groups", "inner_group_num"):
        if fields.integer(name, 1, 4096) != 1:
            raise fields.wrong(name, fields.values[name], "is not supported, only 1")
    return bert_parts(fields)


_KIND = EncoderKind(
    prefixes=("albert.",),
    names=_NAMES,
    parts=_parts,
    embedding_size=embedding_size,
    shared_layers=True,
    head=("pooler", "classifier"),
)
ALBERT_FAMILIES = encoder_families(
    _KIND,
    "Albert",
    "albert",
    defaults={
        **BERT_DEFAULTS,
        "vocab_size": 30000,
        "embedding_size": 128,
        "hidden_size": 4096,
        "num_attention_heads": 64,
        "intermediate_size": 16384,
        "hidden_act": "gelu_new",
        "num_hidden_groups": 1,
        "inner_group_num": 1,
    },
)
