"""Jina Embeddings v3 (arXiv 2409.10173): XLM-RoBERTa with RoPE instead of learned positions.

Its adapters for kinds of tasks are files of their own, which are not read.
"""

from __future__ import annotations

from octavo_engine.model.checkpoint.names import TensorNames
from octavo_engine.model.families import reading
from octavo_engine.model.families.bert import BERT_DEFAULTS
from octavo_engine.model.families.encoder import encoder_families
from octavo_engine.model.families.encoder_kind import EncoderKind
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import AttentionSpec, MLPSpec

_LAYER = "encoder.layers.{layer}"
_QKV = f"{_LAYER}.mixer.Wqkv"
_NAMES = TensorNames(
    embedding="embeddings.word_embeddings",
    text_kinds="embeddings.token_type_embeddings",
    embedding_norm="emb_ln",
    attention=f"{_LAYER}.mixer",
    query=_QKV,
    key=_QKV,
    value=_QKV,
    output=f"{_LAYER}.mixer.out_proj",
    after_mixer=f"{_LAYER}.norm1",
    up=f"{_LAYER}.mlp.fc1",
    down=f"{_LAYER}.mlp.fc2",
    after_feed_forward=f"{_LAYER}.norm2",
)


def _parts(fields: Fields) -> tuple[AttentionSpec, MLPSpec]:
    own = fields.without("num_key_value_heads")
    attention = reading.attention(own, causal=False, qkv_bias=True, output_bias=True)
    return attention, reading.plain_mlp(fields, bias=True)


_KIND = EncoderKind(
    prefixes=("roberta.",),
    names=_NAMES,
    parts=_parts,
    first_position=None,
    head=("classifier.dense", "classifier.out_proj"),
)
_DEFAULTS = {
    **BERT_DEFAULTS,
    "vocab_size": 250002,
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "max_position_embeddings": 8194,
    "type_vocab_size": 1,
    "layer_norm_eps": 1e-5,
    "rope_theta": 20000.0,
}

JINA_EMBEDDINGS_FAMILIES = encoder_families(_KIND, "JinaEmbeddingsV3", "jina_embeddings_v3", defaults=_DEFAULTS)
