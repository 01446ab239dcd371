"""GGUF files of encoders, which give a vector for a text, or with RoBERTa's head the score of a pair of texts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from octavo_engine.errors import ModelLoadError
from octavo_engine.model.gguf.architecture import GGUFArchitecture
from octavo_engine.model.gguf.architectures.gemma import gemma_embedding_fields
from octavo_engine.model.gguf.config_fields import refuse_causal
from octavo_engine.model.gguf.header import Header
from octavo_engine.model.gguf.spec_changes import norms_as_stored
from octavo_engine.model.spec import ModelSpec

_RMS = "attention.layer_norm_rms_epsilon"
"""The key under which the converter writes ModernBERT's `norm_eps`, though its norms are LayerNorms."""
_HEAD = frozenset({"cls.weight", "cls.output.weight"})


def _encoder_fields(header: Header) -> dict[str, Any]:
    """Return the fields of all encoders; ModelLoadError for a file of a model whose tokens see none after them."""
    if header.fields.boolean(key := header.key("attention.causal"), True):
        raise header.fields.wrong(key, True, "is not an encoder's; convert the model again with a current llama.cpp")
    kinds = header.file.tensors.get("token_types.weight")
    rows = 0 if kinds is None else kinds.shape[0] if len(kinds.shape) > 1 else 1  # one row is stored as a vector
    return {"type_vocab_size": rows}


def _without_head(header: Header) -> dict[str, Any]:
    """Return the fields of an encoder whose classification head cannot be told from the file."""
    if found := sorted(_HEAD & header.file.tensors.keys()):
        raise ModelLoadError(
            f"{header.fields.origin}: holds {' and '.join(found)}, of a classification head, and not what the head "
            "computes before or between; take the model's own checkpoint instead"
        )
    return _encoder_fields(header)


def _bert_fields(header: Header) -> dict[str, Any]:
    """Return the fields of BERT, or of RoBERTa with its head, which is the only one whose parts the file has all.

    The converter leaves out BERT's pooler, without which its classes cannot be computed. DistilBERT, whose head is
    RoBERTa's with another activation, has no kinds of texts.
    """
    fields = _encoder_fields(header)
    if not header.file.tensors.keys() >= _HEAD or not fields["type_vocab_size"]:
        return {**fields, **_without_head(header)}
    logits = header.file.tensors["cls.output.weight"].shape
    return {
        **fields,
        "architectures": ["RobertaForSequenceClassification"],
        # RoBERTa's first row for a position is after its padding token's; the converter cuts the rows before it.
        "pad_token_id": 0,
        "max_position_embeddings": header.integer("context_length", 1, 1 << 30) + 1,
        "id2label": _labels(header, logits[0] if len(logits) > 1 else 1),
    }


def _labels(header: Header, count: int) -> dict[str, str]:
    """Return the names of `count` classes by their numbers; they are numbered in files that have no names."""
    key = header.key("classifier.output_labels")
    names = header.fields.values.get(key, [f"LABEL_{number}" for number in range(count)])
    if not isinstance(names, list) or len(names) != count or not all(isinstance(name, str) for name in names):
        raise header.fields.wrong(key, names, f"does not name the {count} classes of cls.output.weight")
    return {str(number): name for number, name in enumerate(names)}


def _modern_bert_fields(header: Header) -> dict[str, Any]:
    """Return ModernBERT's fields."""
    ropes = {
        f"{kind}_attention": {"rope_type": "default", "rope_theta": header.number(f"rope.freq_base{ending}")}
        for kind, ending in (("full", ""), ("sliding", "_swa"))
    }
    return {
        **_without_head(header),
        "norm_eps": header.number(_RMS if header.has(_RMS) else "attention.layer_norm_epsilon"),
        "hidden_activation": header.fields.text(header.key("hidden_activation"), "gelu"),
        "local_attention": header.integer("attention.sliding_window"),
        "global_attn_every_n_layers": header.integer("attention.sliding_window_pattern", default=3),
        "rope_parameters": ropes,
    }


def _llama_embed_fields(header: Header) -> dict[str, Any]:
    """Return the fields of Llama Nemotron's embeddings."""
    refuse_causal(header)
    return {}


def _positions_from_the_first_row(spec: ModelSpec) -> ModelSpec:
    """Return `spec` whose table of positions begins with position 0, as files have RoBERTa's."""
    return (
        spec if spec.positions is None else replace(spec, positions=replace(spec.positions, offset=0, uncounted=None))
    )


ENCODERS = (
    GGUFArchitecture(
        name="bert",
        model_class="BertModel",
        other_classes=(
            *("RobertaModel", "XLMRobertaModel", "CamembertModel", "DistilBertModel"),
            *("RobertaForSequenceClassification", "XLMRobertaForSequenceClassification"),
        ),
        read=_bert_fields,
        change=_positions_from_the_first_row,
    ),
    GGUFArchitecture(name="nomic-bert", model_class="NomicBertModel", read=_without_head),
    GGUFArchitecture(name="jina-bert-v3", model_class="JinaEmbeddingsV3Model", read=_without_head),
    GGUFArchitecture(name="jina-bert-v2", model_class="JinaBertModel", read=_without_head),
    GGUFArchitecture(name="modern-bert", model_class="ModernBertModel", read=_modern_bert_fields),
    GGUFArchitecture(
        name="llama-embed", model_class="LlamaBidirectionalModel", read=_llama_embed_fields, interleaves_rope=True
    ),
    GGUFArchitecture(
        name="gemma-embedding", model_class="Gemma3TextModel", read=gemma_embedding_fields, change=norms_as_stored
    ),
    GGUFArchitecture(name="eurobert", model_class="EuroBertModel", read=_without_head),
)
