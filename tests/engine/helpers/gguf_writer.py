"""Writes a transformers model as a GGUF file in the way llama.cpp's converter does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.constants import GGMLQuantizationType as Kind
from gguf.quants import quantize

from octavo_engine.model.quantization.gguf import FORMATS


def permute(weights: np.ndarray, heads: int) -> np.ndarray:
    """Return the rows of each head in (pair, half) instead of (half, pair) order, as convert_hf_to_gguf.py does."""
    return (
        weights.reshape(heads, 2, weights.shape[0] // heads // 2, *weights.shape[1:])
        .swapaxes(1, 2)
        .reshape(weights.shape)
    )


def write_gguf(model: Any, path: Path, kind: Kind = Kind.F32, changes: Any = None, drop: tuple[str, ...] = ()) -> Path:
    """Write `model` as a GGUF file, matrices as `kind`, and return its path; `changes(writer)` may add metadata."""
    config, state = model.config, model.state_dict()
    writer = gguf.GGUFWriter(path, config.model_type)
    architecture = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}[config.model_type]
    interleaved = config.model_type == "llama"
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    values: dict[str, Any] = {
        "add_block_count": config.num_hidden_layers,
        "add_context_length": config.max_position_embeddings,
        "add_embedding_length": config.hidden_size,
        "add_feed_forward_length": config.intermediate_size,
        "add_head_count": config.num_attention_heads,
        "add_head_count_kv": config.num_key_value_heads,
        "add_key_length": head_dim,
        "add_value_length": head_dim,
        "add_rope_dimension_count": head_dim,
        "add_layer_norm_rms_eps": config.rms_norm_eps,
        "add_rope_freq_base": config.rope_parameters["rope_theta"],
        "add_eos_token_id": 2,
        "add_vocab_size": config.vocab_size,
    }
    for method, value in values.items():
        if method not in drop:
            getattr(writer, method)(value)
    if changes is not None:
        changes(writer)
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    for name, tensor in state.items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        array = tensor.numpy()
        if interleaved and ".q_proj." in name:
            array = permute(array, config.num_attention_heads)
        if interleaved and ".k_proj." in name:
            array = permute(array, config.num_key_value_heads)
        gguf_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert gguf_name is not None
        if array.ndim > 1 and kind is not Kind.F32:
            writer.add_tensor(gguf_name, quantize(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(gguf_name, array.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def random_blocks(kind: str, rows: int, columns: int) -> np.ndarray:
    """Any bytes, but for scales that are no numbers."""
    form = FORMATS[kind]
    raw = np.random.default_rng(0).integers(0, 256, (rows, columns // form.columns, form.num_bytes), np.uint8)
    places = {"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,), "Q4_1": (0, 2), "Q5_1": (0, 2)}.get(kind, (0,))
    places = (0, 2) if kind in ("Q4_K", "Q5_K") else places
    for place in places:
        raw[..., place + 1] &= 0x3B  # positive, with an exponent below infinity's
    return raw.reshape(rows, -1)
