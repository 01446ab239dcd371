"""The cases of `model/gguf/architectures/dense.py`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gguf_families.case import SCALES, YARN, Case, Tensors, granite, permuted, window, yarn


def with_norms_whole(config: Any, name: str, array: np.ndarray) -> Tensors:
    """Norms that checkpoints hold less one."""
    yield name, array + 1 if name.endswith("norm.weight") else array


def longrope(config: Any) -> dict[str, np.ndarray]:
    """Phi-3's divisors."""
    rope = config.rope_parameters
    return {f"rope_factors_{kind}.weight": np.array(rope[f"{kind}_factor"], np.float32) for kind in ("short", "long")}


LONG = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.5, 2.0, 3.0],
    "long_factor": [2.0, 3.0, 4.0, 8.0],
    "original_max_position_embeddings": 64,
}


def capped(config: Any) -> dict[str, Any]:
    """Gemma 2's bounds."""
    caps = {f"{part}_logit_softcapping": getattr(config, f"{part}_logit_softcapping") for part in ("attn", "final")}
    return {**window(config), **caps}


DENSE: dict[str, Case] = {
    "qwen3, yarn": Case("Qwen3", {"rope_parameters": YARN, "head_dim": 16}, yarn),
    "gemma": Case("Gemma", {"head_dim": 16}, convert=with_norms_whole),
    "gemma2": Case(
        "Gemma2",
        {"head_dim": 16, "sliding_window": 4, "query_pre_attn_scalar": 16, "attn_logit_softcapping": 5.0},
        capped,
        with_norms_whole,
    ),
    "gemma3": Case(
        "Gemma3",
        {"head_dim": 16, "sliding_window": 4, "query_pre_attn_scalar": 16, "num_hidden_layers": 6},
        window,
        with_norms_whole,
    ),
    "phi3": Case("Phi3", {"sliding_window": 4, "pad_token_id": 0}, window),
    "phi3, long": Case(
        "Phi3",
        {"rope_parameters": LONG, "original_max_position_embeddings": 64, "pad_token_id": 0},
        lambda config: {"rope.scaling.original_context_length": config.original_max_position_embeddings},
        vectors=longrope,
    ),
    "granite": Case("Granite", SCALES, granite, permuted),
    "olmo": Case("Olmo", {"clip_qkv": 0.5}, lambda c: {"attention.clamp_kqv": c.clip_qkv}, permuted, layer_norm=True),
    "olmo2": Case("Olmo2"),
    "command-r": Case("Cohere", keys=lambda config: {"logit_scale": config.logit_scale}, layer_norm=True),
    "command-r, norms": Case(
        "Cohere", {"use_qk_norm": True}, lambda config: {"logit_scale": config.logit_scale}, layer_norm=True
    ),
    "cohere2": Case(
        "Cohere2",
        {"sliding_window": 4, "num_hidden_layers": 4},
        lambda config: {"logit_scale": config.logit_scale, **window(config)},
        layer_norm=True,
    ),
    "smollm3": Case("SmolLM3", {"num_hidden_layers": 4, "pad_token_id": 0}, convert=permuted),
    "arcee": Case("Arcee", convert=permuted),
    "seed_oss": Case("SeedOss", {"head_dim": 16}),
    "hunyuan-dense": Case("HunYuanDenseV1", {"head_dim": 16}),
    "ernie4_5": Case("Ernie4_5", {"head_dim": 16}),
}
