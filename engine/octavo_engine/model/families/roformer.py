"""Later models of BERT's shape as decoders: RoFormer (arXiv 2104.09864), RemBERT (2010.12821), BigBird, BertGeneration.

RoFormer has RoPE, and RemBERT embeddings and a head of other sizes. In prompts longer than the blocks that one token
attends to, BigBird's attention is sparse, and tokens also see later ones. This is not computed here: those blocks are
the longest context, unless `attention_type` says that all attention is full.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from octavo_engine.model.families import reading
from octavo_engine.model.families.bert import BERT_DEFAULTS, bert_parts
from octavo_engine.model.families.bert_decoder import BERT_DECODER_NAMES, bert_decoder, bert_head, embedding_size
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import HeadSpec, ModelSpec, PositionSpec


def _roformer(architecture: str, fields: Fields) -> ModelSpec:
    reading.refuse_if_true(fields, "rotary_value")
    rotated = reading.attention(fields, grouped=False)
    rotated = reading.with_rope(rotated, interleaved=True, rows=reading.max_position(fields))
    attention, mlp = bert_parts(fields)
    attention = replace(attention, rope=rotated.rope)
    return bert_decoder(fields, architecture, attention, mlp, embedding_size(fields), positions=None)


def _rembert(architecture: str, fields: Fields) -> ModelSpec:
    size, of_head = (fields.integer(f"{end}put_embedding_size", 1, 1 << 20) for end in ("in", "out"))
    head = replace(bert_head(fields, reading.activation(fields), of_head), tied=False)
    names = replace(
        BERT_DECODER_NAMES, embedding_in="encoder.embedding_hidden_mapping_in", head_transform="cls.predictions"
    )
    parts = bert_parts(fields)  # the projection is there even where `size` is the hidden size
    return bert_decoder(fields, architecture, *parts, size, head=head, names=names, projected_last=True)


def _big_bird(architecture: str, fields: Fields) -> ModelSpec:
    hidden, (attention, mlp) = reading.hidden_size(fields), bert_parts(fields)
    attention = replace(attention, qkv_bias=fields.boolean("use_bias", True))
    scale = hidden**0.5 if fields.boolean("rescale_embeddings", False) else 1.0
    spec = bert_decoder(fields, architecture, attention, mlp, hidden, embedding_scale=scale)
    if (kind := fields.text("attention_type", "block_sparse")) == "original_full":
        return spec
    if kind != "block_sparse":
        raise fields.wrong("attention_type", kind, "is not supported, only block_sparse and original_full")
    blocks = 5 + 2 * fields.integer("num_random_blocks", 0, 1 << 20, default=3)
    longest = blocks * fields.integer("block_size", 1, 1 << 20, default=64)
    if longest >= spec.max_position:
        return spec
    positions = PositionSpec(rows=spec.max_position)
    return replace(spec, max_position=longest, positions=positions)


def _bert_generation(architecture: str, fields: Fields) -> ModelSpec:
    head = HeadSpec(fields.boolean("tie_word_embeddings", True), bias=True)
    names, hidden = replace(BERT_DECODER_NAMES, head="lm_head.decoder"), reading.hidden_size(fields)
    return bert_decoder(fields, architecture, *bert_parts(fields), hidden, head=head, names=names, token_types=0)


def _family(architecture: str, model_type: str, read: Any, **defaults: Any) -> Family:
    fields = {**BERT_DEFAULTS, "is_decoder": False, "rope_theta": 10000.0, **defaults}
    return Family(architecture=architecture, model_type=model_type, read=partial(read, architecture), defaults=fields)


LATER_BERT_DECODERS = (
    _family("RoFormerForCausalLM", "roformer", _roformer, vocab_size=50000, max_position_embeddings=1536),
    _family(
        "RemBertForCausalLM",
        "rembert",
        _rembert,
        vocab_size=250300,
        hidden_size=1152,
        num_hidden_layers=32,
        num_attention_heads=18,
        intermediate_size=4608,
        input_embedding_size=256,
        output_embedding_size=1664,
        eos_token_id=313,
        tie_word_embeddings=False,
    ),
    _family(
        "BigBirdForCausalLM",
        "big_bird",
        _big_bird,
        vocab_size=50358,
        hidden_act="gelu_new",
        max_position_embeddings=4096,
        eos_token_id=2,
    ),
    _family(
        "BertGenerationDecoder",
        "bert-generation",
        _bert_generation,
        vocab_size=50358,
        hidden_size=1024,
        num_hidden_layers=24,
        num_attention_heads=16,
        intermediate_size=4096,
        eos_token_id=1,
    ),
)
