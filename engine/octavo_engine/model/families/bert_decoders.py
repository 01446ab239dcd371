"""BERT and models of its shape as decoders; later ones are in roformer.py.

RoBERTa, and others that number positions as it does, are not supported as decoders: transformers counts their positions
from 0 while it generates, and from the row after the padding token's elsewhere, so neither answer is the right one.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from octavo_engine.model.families import reading
from octavo_engine.model.families.bert import BERT_DEFAULTS, ELECTRA_SIZES, bert_parts
from octavo_engine.model.families.bert_decoder import BERT_DECODER_NAMES, bert_decoder, bert_head, embedding_size
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import ModelSpec

_MEGATRON_NAMES = replace(
    BERT_DECODER_NAMES,
    before_mixer="encoder.layer.{layer}.attention.ln",
    before_feed_forward="encoder.layer.{layer}.ln",
    norm="encoder.ln",
)


def _read(architecture: str, fields: Fields) -> ModelSpec:
    values: dict[str, Any] = {}
    if architecture.startswith("Megatron"):
        norm = reading.layer_norm(fields, bias=True)
        values = {"norm": norm, "norms": reading.norms_before(norm), "embedding_norm": None, "names": _MEGATRON_NAMES}
    elif architecture.startswith("Electra"):
        values = {"head": bert_head(fields, "gelu")}
    return bert_decoder(fields, architecture, *bert_parts(fields), embedding_size(fields), **values)


def _family(architecture: str, model_type: str, **defaults: Any) -> Family:
    return Family(
        architecture=architecture,
        model_type=model_type,
        read=partial(_read, architecture),
        defaults={**BERT_DEFAULTS, "is_decoder": False, **defaults},
    )


BERT_DECODERS = (
    _family("BertLMHeadModel", "bert"),
    _family("ErnieForCausalLM", "ernie"),
    _family("ElectraForCausalLM", "electra", **ELECTRA_SIZES),
    _family(
        "MegatronBertForCausalLM",
        "megatron-bert",
        vocab_size=29056,
        hidden_size=1024,
        intermediate_size=4096,
        num_hidden_layers=24,
        num_attention_heads=16,
    ),
)
