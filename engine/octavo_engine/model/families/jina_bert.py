"""Jina Embeddings v2 (arXiv 2310.19923) and rerankers of its shape: BERT with ALiBi and gated feed-forwards.

ALiBi is the same to both sides, and stands instead of a table of positions. The layers of its model for code differ,
and so do their tensors' names, by which it is refused.
"""

from __future__ import annotations

from dataclasses import replace

from octavo_engine.model.families import reading
from octavo_engine.model.families.bert import BERT_DEFAULTS, BERT_NAMES
from octavo_engine.model.families.encoder import encoder_families
from octavo_engine.model.families.encoder_kind import EncoderKind
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import ALiBiSpec, AttentionSpec, MLPSpec

_MLP = "encoder.layer.{layer}.mlp"
_NAMES = replace(
    BERT_NAMES,
    gate=f"{_MLP}.gated_layers",
    up=f"{_MLP}.gated_layers",
    down=f"{_MLP}.wo",
    after_feed_forward=f"{_MLP}.layernorm",
)
_ACTIVATIONS = {"geglu": "gelu", "reglu": "relu"}


def _parts(fields: Fields) -> tuple[AttentionSpec, MLPSpec]:
    kind, positions = fields.text("feed_forward_type"), fields.text("position_embedding_type")
    if kind not in _ACTIVATIONS:
        raise fields.wrong("feed_forward_type", kind, f"is not supported, only {' and '.join(_ACTIVATIONS)}")
    if positions != "alibi":
        raise fields.wrong("position_embedding_type", positions, "is not supported, only alibi")
    attention = reading.attention(
        fields, grouped=False, rope=None, alibi=ALiBiSpec(), causal=False, qkv_bias=True, output_bias=True
    )
    return attention, reading.mlp(fields, activation=_ACTIVATIONS[kind], output_bias=True)


JINA_BERT_FAMILIES = encoder_families(
    EncoderKind(prefixes=("bert.",), names=_NAMES, parts=_parts, first_position=None),
    "JinaBert",
    "bert",
    defaults={**BERT_DEFAULTS, "feed_forward_type": "geglu", "position_embedding_type": "alibi"},
    without_effect=frozenset({"hidden_act"}),
)
