"""Translates a GGUF header to the fields of config.json, so that the same code reads and checks both."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from octavo_engine.errors import ModelLoadError
from octavo_engine.model.fields import Fields
from octavo_engine.model.gguf.architectures import gguf_architecture
from octavo_engine.model.gguf.file import GGUFFile
from octavo_engine.model.gguf.header import Header
from octavo_engine.model.gguf.parts import read_model
from octavo_engine.model.gguf.rope import rope_parameters
from octavo_engine.model.spec import ModelSpec

_FLOAT_TYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


def gguf_config(path: Path) -> tuple[dict[str, Any], Callable[[ModelSpec], ModelSpec]]:
    """Return the config.json fields of a GGUF file, and the change of their spec for the tensors of this file.

    ModelLoadError if its architecture is not supported.
    """
    file = read_model(path)
    header = Header(file, Fields(str(path), file.metadata))
    fields = header.fields
    architecture = gguf_architecture(header)
    numbers = header.most if architecture.layers_differ else header.of_layers
    config = {
        "architectures": [architecture.model_class],
        "num_hidden_layers": header.num_layers,
        "intermediate_size": numbers("feed_forward_length", 0) or None,
        **_attention(header, numbers),
        "vocab_size": _vocab_size(file, fields),
        "max_position_embeddings": header.integer("context_length", 1, 1 << 30),
        **_norms(header),
        "rope_parameters": rope_parameters(header),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "mlp_bias": header.stored("ffn_up.bias"),
        "dtype": _dtype(file),
        "eos_token_id": [
            file.metadata[key] for key in (f"tokenizer.ggml.{end}" for end in _END_KEYS) if key in file.metadata
        ],
    }
    config |= architecture.read(header)
    header.refuse_unread()
    return config, partial(architecture.of_file, file=file)


def _attention(header: Header, numbers: Callable[..., int]) -> dict[str, Any]:
    heads, hidden = numbers("attention.head_count"), header.integer("embedding_length", 1, 1 << 20)
    if not heads:  # layers with states alone
        return {"hidden_size": hidden}
    head_dim = header.integer("attention.key_length", 2, 1024, default=hidden // heads)  # whatever the family's is
    rotated = header.integer("rope.dimension_count", 1, 1 << 16, default=head_dim)
    return {
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": numbers("attention.head_count_kv", heads) or None,
        "head_dim": head_dim,
        "partial_rotary_factor": rotated / head_dim,
        "attention_bias": header.stored("attn_q.bias") or header.stored("attn_qkv.bias"),
    }


def _norms(header: Header) -> dict[str, Any]:
    """Return the norms' epsilon under the field name of each kind of norm; ModelLoadError if there is none."""
    layer_norm, rms_norm = "attention.layer_norm_epsilon", "attention.layer_norm_rms_epsilon"
    if header.has(layer_norm) and not header.has(rms_norm):
        return {"layer_norm_eps": header.number(layer_norm)}
    return {"rms_norm_eps": header.fields.number(header.key(rms_norm), 0, 1)}


def _vocab_size(file: GGUFFile, fields: Fields) -> int:
    """Return the number of the embedding's rows: some files state no vocabulary size, and tokenizers may have fewer
    tokens."""
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelLoadError(f"{fields.origin}: the tensor 'token_embd.weight' is missing")
    return embedding.shape[0]


def _dtype(file: GGUFFile) -> str:
    """Return the dtype of most weights; bfloat16 for quantized ones, which were made from 16 bits."""
    sizes: dict[str, int] = {}
    for tensor in file.tensors.values():
        sizes[tensor.type_name] = sizes.get(tensor.type_name, 0) + tensor.num_elements
    return _FLOAT_TYPES.get(max(sizes, key=lambda kind: sizes[kind], default="F32"), "bfloat16")
