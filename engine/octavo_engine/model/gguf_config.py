"""A GGUF header said in the words of config.json, so that one set of checks serves both."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from octavo_engine.errors import ModelLoadError
from octavo_engine.model.families import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.gguf_file import GGUFFile, dequantize_rows, read_gguf

_FLOAT_TYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


def gguf_config(path: Path, families: Iterable[Family]) -> dict[str, Any]:
    """The config.json fields of the GGUF file at `path`; ModelLoadError if it is not a supported model."""
    file = read_gguf(path)
    fields = Fields(str(path), file.metadata)
    family = _family(file, fields, families)
    name = file.architecture
    return {
        "architectures": [family.architecture],
        "num_hidden_layers": fields.integer(f"{name}.block_count", 1, 4096),
        "intermediate_size": fields.integer(f"{name}.feed_forward_length", 1, 1 << 22),
        **_attention(file, fields),
        "vocab_size": _vocab_size(file, fields),
        "max_position_embeddings": fields.integer(f"{name}.context_length", 1, 1 << 30),
        "rms_norm_eps": fields.number(f"{name}.attention.layer_norm_rms_epsilon", 0, 1),
        "rope_parameters": _rope_parameters(file, fields),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in file.tensors,
        "hidden_act": "silu",
        "dtype": _dtype(file),
        "eos_token_id": [
            file.metadata[key] for key in (f"tokenizer.ggml.{end}" for end in _END_KEYS) if key in file.metadata
        ],
    }


def _family(file: GGUFFile, fields: Fields, families: Iterable[Family]) -> Family:
    """The family of the file's architecture; ModelLoadError if it or the file's kind is not supported."""
    path = fields.origin
    known = {family.gguf_architecture: family for family in families if family.gguf_architecture}
    family = known.get(file.architecture)
    if family is None:
        supported = ", ".join(known)
        raise ModelLoadError(
            f"{path}: the GGUF architecture {file.architecture!r} is not supported (supported: {supported})"
        )
    if fields.integer("split.count", 0, 1 << 16, default=1) > 1:
        raise ModelLoadError(
            f"{path}: one part of a GGUF model in several files; merge them first: llama-gguf-split --merge"
        )
    if fields.integer(f"{file.architecture}.expert_count", 0, 1 << 16, default=0) > 0:
        raise ModelLoadError(f"{path}: mixtures of experts are not supported by this version of Octavo")
    return family


def _attention(file: GGUFFile, fields: Fields) -> dict[str, Any]:
    name = file.architecture
    heads = fields.integer(f"{name}.attention.head_count", 1, 1 << 16)
    hidden = fields.integer(f"{name}.embedding_length", 1, 1 << 20)
    length = f"{name}.attention.key_length"
    head_dim = fields.integer(length, 2, 1024) if fields.has(length) else None
    rotated = fields.integer(f"{name}.rope.dimension_count", 1, 1 << 16, default=head_dim or hidden // heads)
    return {
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": fields.integer(f"{name}.attention.head_count_kv", 1, 1 << 16, default=heads),
        "head_dim": head_dim,
        "partial_rotary_factor": rotated / (head_dim or max(1, hidden // heads)),
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
    }


def _vocab_size(file: GGUFFile, fields: Fields) -> int:
    """The rows of the embedding: some files state no size, and a tokenizer may know fewer tokens."""
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelLoadError(f"{fields.origin}: the tensor 'token_embd.weight' is missing")
    return embedding.shape[0]


def _rope_parameters(file: GGUFFile, fields: Fields) -> dict[str, Any]:
    name = f"{file.architecture}.rope"
    rope: dict[str, Any] = {"rope_theta": fields.number(f"{name}.freq_base", 1e-3, 1e12, default=10000.0)}
    scaling = fields.text(f"{name}.scaling.type", default="none")
    if frequencies := file.tensors.get("rope_freqs.weight"):
        data = np.memmap(file.path, mode="r", dtype=np.uint8)
        values = dequantize_rows(data, frequencies, 0, 1)
        return {**rope, "rope_type": "factors", "factors": [float(value) for value in values.reshape(-1)]}
    if scaling == "none":
        return rope
    if scaling != "linear":
        raise fields.wrong(f"{name}.scaling.type", scaling, "is not supported; supported: none, linear")
    return {**rope, "rope_type": scaling, "factor": fields.number(f"{name}.scaling.factor", 1e-3, 1e6)}


def _dtype(file: GGUFFile) -> str:
    """The type most of the weights were stored in; quantized ones were made from 16 bits, so bfloat16 for them."""
    sizes: dict[str, int] = {}
    for tensor in file.tensors.values():
        sizes[tensor.type_name] = sizes.get(tensor.type_name, 0) + tensor.num_elements
    return _FLOAT_TYPES.get(max(sizes, key=lambda kind: sizes[kind], default="F32"), "bfloat16")
