"""BERT (arXiv 1810.04805), RoBERTa (arXiv 1907.11692) and encoders of their shape.

Unlike in Llama, each token also sees the tokens after it, positions are learnt vectors instead of RoPE, and norms
follow attention and feed-forward. What they give for a text is a vector; with a classification head it is classes, or
the score of a pair of texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from octavo_engine.model.checkpoint.names import TensorNames
from octavo_engine.model.families import reading
from octavo_engine.model.families.encoder import encoder_families
from octavo_engine.model.families.encoder_kind import EncoderKind, other_embedding_size
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import AttentionSpec, MLPSpec

_LAYER = "encoder.layer.{layer}"
BERT_NAMES = TensorNames(
    embedding="embeddings.word_embeddings",
    positions="embeddings.position_embeddings",
    text_kinds="embeddings.token_type_embeddings",
    task_kinds="embeddings.task_type_embeddings",
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
BERT_DEFAULTS: Mapping[str, Any] = {
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
ELECTRA_SIZES = {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024, "embedding_size": 128}


def bert_parts(fields: Fields) -> tuple[AttentionSpec, MLPSpec]:
    """Return attention without RoPE and a feed-forward without a gate, both with biases."""
    # sinusoidal_pos_embds says how the table of positions began, and is not read: files hold that table, too.
    name = "position_embedding_type"
    if fields.text(name, "absolute") != "absolute":
        raise fields.wrong(name, fields.values[name], "is not supported, only absolute")
    attention = reading.attention(fields, grouped=False, rope=None, causal=False, qkv_bias=True, output_bias=True)
    return attention, reading.plain_mlp(fields, bias=True)


def first_row_after_padding(fields: Fields) -> int:
    """Return the row of position 0: in RoBERTa the rows up to the padding token's id stand for no position."""
    return fields.integer("pad_token_id", 0, 1 << 26) + 1


_BERT = EncoderKind(prefixes=("bert.",), names=BERT_NAMES, parts=bert_parts)
_ERNIE = replace(_BERT, prefixes=("ernie.",))
_ELECTRA = replace(
    _BERT,
    prefixes=("electra.",),
    names=replace(BERT_NAMES, embedding_in="embeddings_project"),
    embedding_size=other_embedding_size,
    head=("classifier.dense", "classifier.out_proj"),
    activation="gelu",
)
_ROBERTA = replace(
    _BERT,
    prefixes=("roberta.",),
    first_position=first_row_after_padding,
    head=("classifier.dense", "classifier.out_proj"),
)
_DISTIL_LAYER = "transformer.layer.{layer}"
_DISTILBERT = replace(
    _BERT,
    prefixes=("distilbert.",),
    names=replace(
        BERT_NAMES,
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
_PADDED = {**BERT_DEFAULTS, "pad_token_id": 1}
_DISTIL_DEFAULTS = {**BERT_DEFAULTS, "type_vocab_size": 0, "num_hidden_layers": 6}

BERT_FAMILIES = (
    *encoder_families(_BERT, "Bert", "bert", defaults=BERT_DEFAULTS),
    *encoder_families(_ERNIE, "Ernie", "ernie", defaults=BERT_DEFAULTS),
    *encoder_families(_ELECTRA, "Electra", "electra", defaults={**BERT_DEFAULTS, **ELECTRA_SIZES}),
    *encoder_families(_ROBERTA, "Roberta", "roberta", defaults=_PADDED),
    *encoder_families(_ROBERTA, "XLMRoberta", "xlm-roberta", defaults=_PADDED),
    *encoder_families(_ROBERTA, "Camembert", "camembert", defaults=_PADDED),
    *encoder_families(_DISTILBERT, "DistilBert", "distilbert", aliases=_DISTIL_ALIASES, defaults=_DISTIL_DEFAULTS),
)
