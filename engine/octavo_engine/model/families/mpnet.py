"""MPNet (arXiv 2004.09297), the encoder of many models of sentence-transformers.

It is RoBERTa without token types. Attention scores also have a learnt term for the distance of key and query, by T5's
buckets, which all layers share.
"""

from __future__ import annotations

from dataclasses import replace

from octavo_engine.model.families.bert import BERT_DEFAULTS, BERT_NAMES, bert_parts
from octavo_engine.model.families.encoder import encoder_families
from octavo_engine.model.families.encoder_kind import EncoderKind
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import AttentionSpec, MLPSpec

_BUCKETS = 32
"""transformers counts so many, whatever the size of the table."""
_PADDING = 1
"""The id of the token of padding, in transformers whatever config.json says."""
_LAYER = "encoder.layer.{layer}"
_NAMES = replace(
    BERT_NAMES,
    query=f"{_LAYER}.attention.attn.q",
    key=f"{_LAYER}.attention.attn.k",
    value=f"{_LAYER}.attention.attn.v",
    output=f"{_LAYER}.attention.attn.o",
    after_mixer=f"{_LAYER}.attention.LayerNorm",
)


def _parts(fields: Fields) -> tuple[AttentionSpec, MLPSpec]:
    attention, mlp = bert_parts(fields)
    name = "relative_attention_num_buckets"
    if fields.integer(name, 1, 1 << 16) != _BUCKETS:
        raise fields.wrong(name, fields.values[name], f"is not supported, only {_BUCKETS}")
    return replace(attention, distance_buckets=_BUCKETS), mlp


_KIND = EncoderKind(
    prefixes=("mpnet.",),
    names=_NAMES,
    parts=_parts,
    first_position=lambda _: _PADDING + 1,
    head=("classifier.dense", "classifier.out_proj"),
)
MPNET_FAMILIES = encoder_families(
    _KIND,
    "MPNet",
    "mpnet",
    left_out=frozenset({"type_vocab_size"}),
    defaults={**BERT_DEFAULTS, "vocab_size": 30527, "type_vocab_size": 0, "relative_attention_num_buckets": _BUCKETS},
)
