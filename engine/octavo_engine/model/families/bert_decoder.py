"""BERT and models of its shape as decoders: each token sees only itself and the tokens before it.

The head is BERT's: a linear, an activation and a norm before the product with the vocabulary. RoBERTa, and others that
number positions as it does, are not supported as decoders: transformers counts their positions from 0 while it
generates, and from the row after the padding token's elsewhere, so neither answer is the right one.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from octavo_engine.model.families import reading
from octavo_engine.model.families.bert import BERT_DEFAULTS, BERT_NAMES, ELECTRA_SIZES, bert_parts
from octavo_engine.model.families.encoder import OLD_NORM_ENDINGS
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.names import StoredNames
from octavo_engine.model.spec import HeadSpec, HeadTransformSpec, LayerNorms, LayerSpec, ModelSpec, PositionSpec

_HEAD = "cls.predictions"
_NAMES = replace(BERT_NAMES, head=f"{_HEAD}.decoder", head_transform=f"{_HEAD}.transform")
_MEGATRON_NAMES = replace(
    _NAMES,
    before_mixer="encoder.layer.{layer}.attention.ln",
    before_feed_forward="encoder.layer.{layer}.ln",
    norm="encoder.ln",
)
_RENAMED = (
    (f"{_HEAD}.bias", f"{_HEAD}.decoder.bias"),
    (f"{_HEAD}.transform.LayerNorm.", f"{_HEAD}.transform.norm."),
    ("electra.", ""),
    ("ernie.", ""),
    ("bert.", ""),
    ("generator_lm_head.", f"{_HEAD}.decoder."),
    ("generator_predictions.LayerNorm.", f"{_HEAD}.transform.norm."),
    ("generator_predictions.", f"{_HEAD}.transform."),
)
_UNREAD = ("embeddings.position_ids", "pooler.", "cls.seq_relationship.")


def _read(architecture: str, fields: Fields) -> ModelSpec:
    if not fields.boolean("is_decoder", False):
        raise fields.wrong("is_decoder", False, f"is not supported for {architecture}: tokens would see what follows")
    reading.refuse_if_true(fields, "add_cross_attention")
    if fields.integer("embedding_size", 1, 1 << 20, default=reading.hidden_size(fields)) != reading.hidden_size(fields):
        raise fields.wrong("embedding_size", fields.values["embedding_size"], "is not supported, only hidden_size")
    attention, mlp = bert_parts(fields)
    norm, megatron = reading.layer_norm(fields, bias=True), architecture.startswith("Megatron")
    after = LayerNorms(after_mixer=norm, after_feed_forward=norm, after_adding=True)
    layer = LayerSpec(
        mixer=replace(attention, causal=True),
        feed_forward=mlp,
        norms=reading.norms_before(norm) if megatron else after,
    )
    activation = "gelu" if architecture.startswith("Electra") else mlp.activation
    transform = HeadTransformSpec(bias=True, activation=activation, norm=norm)
    return reading.model(
        fields,
        architecture,
        reading.repeated(fields, layer),
        norm=norm if megatron else None,
        embedding_norm=None if megatron else norm,
        positions=PositionSpec(),
        token_types=fields.integer("type_vocab_size", 1, 1 << 16),
        head=HeadSpec(fields.boolean("tie_word_embeddings", True), bias=True, transform=transform),
        names=_MEGATRON_NAMES if megatron else _NAMES,
        stored_names=StoredNames(renamed=_RENAMED, endings=OLD_NORM_ENDINGS, ignored=_UNREAD),
    )


def _family(architecture: str, model_type: str, **defaults: Any) -> Family:
    read = partial(_read, architecture)
    return Family(
        architecture=architecture,
        model_type=model_type,
        read=read,
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
