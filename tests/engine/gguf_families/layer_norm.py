"""The cases of `model/gguf/architectures/layer_norm.py`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from gguf_families.case import Case, Tensors, gathered


def layernorm_one_more(config: Any, name: str, array: np.ndarray) -> Tensors:
    """Nemotron's."""
    yield name, array + 1 if "norm" in name and name.endswith("weight") else array


def in_turn(config: Any, name: str, array: np.ndarray, *, groups: Callable[[Any], int]) -> Tensors:
    """Query, key and value one after another, which checkpoints have in groups of heads."""
    if "query_key_value" not in name:
        yield name, array
        return
    count, heads = groups(config), config.num_attention_heads
    per_group = array.reshape(count, heads // count + 2, -1, *array.shape[1:])
    parts = per_group[:, :-2], per_group[:, -2], per_group[:, -1]
    yield name, np.concatenate([part.reshape(-1, *array.shape[1:]) for part in parts])


def as_rows(config: Any, name: str, array: np.ndarray) -> Tensors:
    """GPT-2's matrices [in, out] transposed."""
    turned = name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight"))
    yield name, array.T.copy() if turned else array


def heads_of(config: Any, name: str) -> int:
    """The number of the heads that have a norm each."""
    return int(config.num_attention_heads if ".q_layernorm" in name else config.num_key_value_heads)


NO_HEAD_SIZES: dict[str, Any] = {"num_key_value_heads": ...}
HALF = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}}


LAYER_NORM: dict[str, Case] = {
    "phi2": Case("Phi", HALF, layer_norm=True),
    "starcoder2": Case("Starcoder2", {"use_bias": True}, layer_norm=True),
    "stablelm": Case(
        "StableLm",
        {**HALF, "use_qkv_bias": True},
        lambda config: {"use_parallel_residual": True},  # written where config.json does not say that it is not
        layer_norm=True,
    ),
    "falcon": Case(
        "Falcon",
        {"multi_query": True, **NO_HEAD_SIZES},
        convert=partial(in_turn, groups=lambda _: 1),
        layer_norm=True,
    ),
    "falcon, new": Case(
        "Falcon",
        {"new_decoder_architecture": True, "num_kv_heads": 2, **NO_HEAD_SIZES},
        convert=partial(in_turn, groups=lambda config: config.num_kv_heads),
        layer_norm=True,
    ),
    "gpt2": Case("GPT2", NO_HEAD_SIZES, convert=as_rows, layer_norm=True),
    "bloom": Case(
        "Bloom",
        NO_HEAD_SIZES,
        convert=partial(in_turn, groups=lambda config: config.num_attention_heads),
        layer_norm=True,
    ),
    "gptneox": Case(
        "GPTNeoX",
        {**HALF, **NO_HEAD_SIZES, "use_parallel_residual": False},
        lambda config: {"use_parallel_residual": config.use_parallel_residual},
        partial(in_turn, groups=lambda config: config.num_attention_heads),
        layer_norm=True,
    ),
    "nemotron": Case("Nemotron", HALF, convert=layernorm_one_more, layer_norm=True),
    "starcoder": Case("GPTBigCode", NO_HEAD_SIZES, layer_norm=True),
    "jais2": Case("Jais2", layer_norm=True),
    "orion": Case(
        "StableLm", {"rope_parameters": {**HALF["rope_parameters"], "partial_rotary_factor": 1.0}}, layer_norm=True
    ),
    "stablelm, norms": Case(
        "StableLm",
        {**HALF, "qk_layernorm": True},
        lambda config: {"use_parallel_residual": config.use_parallel_residual},
        gathered(r"(.*_layernorm)\.norms\.\d+(\..*)", heads_of),
        layer_norm=True,
    ),
    "mpt": Case(
        "Mpt",
        {**NO_HEAD_SIZES, "intermediate_size": ..., "attn_config": {"clip_qkv": 1.5}},
        lambda config: {
            "attention.clamp_kqv": config.attn_config.clip_qkv,
            "attention.max_alibi_bias": float(config.attn_config.alibi_bias_max),
        },
        layer_norm=True,
    ),
}
