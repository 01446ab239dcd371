"""The cases of `model/gguf/architectures/latent.py`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gguf_families.case import YARN, Case, Tensors, yarn
from gguf_families.experts import GROUPS, ROUTED, routed, stacked


def latent(config: Any, name: str, array: np.ndarray) -> Tensors:
    """Keys and values of the projection from latents apart, the keys of each head transposed."""
    if not name.endswith("kv_b_proj.weight"):
        yield from stacked(config, name, array)
        return
    heads = array.reshape(config.num_attention_heads, -1, array.shape[-1])
    keys, values = np.split(heads, [config.qk_nope_head_dim], axis=1)
    block = f"blk.{name.split('.')[2]}"
    yield f"{block}.attn_k_b.weight", np.ascontiguousarray(keys.swapaxes(1, 2))
    yield f"{block}.attn_v_b.weight", np.ascontiguousarray(values)


def sizes(config: Any) -> dict[str, Any]:
    """Return the keys of latent attention: of what is cached, and of a head."""
    key, rotary = config.qk_nope_head_dim + config.qk_rope_head_dim, config.qk_rope_head_dim
    rank = {} if config.q_lora_rank is None else {"attention.q_lora_rank": config.q_lora_rank}
    return {
        **rank,
        "attention.kv_lora_rank": config.kv_lora_rank,
        "attention.head_count_kv": 1,
        "attention.key_length": config.kv_lora_rank + rotary,
        "attention.value_length": config.kv_lora_rank,
        "attention.key_length_mla": key,
        "attention.value_length_mla": config.v_head_dim,
        "rope.dimension_count": rotary,
    }


def of_v3(config: Any) -> dict[str, Any]:
    """Return the keys of DeepSeek V3, whose header does not say in which unit the factor of scores is."""
    multiplier = 0.1 * config.rope_parameters["mscale_all_dim"]
    scaling = {**yarn(config), "rope.scaling.yarn_log_multiplier": multiplier}
    return {**sizes(config), **routed(config), **scaling, "expert_gating_func": 2}


def of_old(config: Any) -> dict[str, Any]:
    """Return the keys of a file of 2024."""
    key = config.qk_nope_head_dim + config.qk_rope_head_dim
    own = {name: value for name, value in sizes(config).items() if not name.endswith("_mla")}
    heads = {"attention.head_count_kv": config.num_attention_heads}
    lengths = {"attention.key_length": key, "attention.value_length": config.v_head_dim}
    return {**own, **routed(config), **heads, **lengths}


LATENT_SIZES = {
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 24,
    "num_key_value_heads": 8,
}
V3 = {**LATENT_SIZES, **ROUTED, **GROUPS, "norm_topk_prob": True}
INDEX = {"index_topk": 4, "index_head_dim": 16, "index_n_heads": 4}
SCALES = {"mscale": 0.7, "mscale_all_dim": 0.7}
GROWING = {**YARN, **SCALES, "llama_4_scaling_beta": 0.3, "original_max_position_embeddings": 4}
TOP = {"topk_method": "group_limited_greedy", "norm_topk_prob": False}
LATENT: dict[str, Case] = {
    "deepseek2": Case("DeepseekV3", {**V3, "rope_parameters": {**YARN, **SCALES}}, of_v3, latent),
    "deepseek2, softmax": Case(
        "DeepseekV2",
        {**LATENT_SIZES, **ROUTED, **GROUPS, **TOP, "q_lora_rank": None},
        lambda config: {**sizes(config), **routed(config)},
        latent,
    ),
    "deepseek2, old": Case(
        "DeepseekV2",
        {**LATENT_SIZES, **ROUTED, "topk_method": "greedy", "n_group": 1, "topk_group": 1},
        of_old,
        stacked,
    ),
    "mistral4": Case(
        "Mistral4",
        {
            **V3,
            "rope_parameters": GROWING,
        },
        lambda config: {
            **of_v3(config),
            "expert_gating_func": None,
            "attention.temperature_scale": config.rope_parameters["llama_4_scaling_beta"],
        },
        latent,
    ),
    "glm-dsa": Case(
        "GlmMoeDsa",
        {**V3, "n_group": 1, "topk_group": 1, **INDEX, "indexer_types": ["full", "shared", "full"]},
        lambda config: {
            **sizes(config),
            **routed(config),
            "expert_gating_func": 2,
            "attention.indexer.head_count": config.index_n_heads,
            "attention.indexer.key_length": config.index_head_dim,
            "attention.indexer.top_k": config.index_topk,
            "attention.indexer.types": [kind == "full" for kind in config.indexer_types],
        },
        latent,
    ),
    "minicpm3": Case(
        "MiniCPM3",
        {**LATENT_SIZES, "v_head_dim": 8, "scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256},
        lambda c: {
            **{name: value for name, value in sizes(c).items() if "length" not in name},
            "attention.head_count_kv": c.num_attention_heads,
            "attention.key_length": c.qk_nope_head_dim + c.qk_rope_head_dim,
        },
    ),
    "deepseek2, dense": Case(
        "Youtu",
        LATENT_SIZES,
        lambda config: {
            **sizes(config),
            "leading_dense_block_count": config.num_hidden_layers,
            "expert_feed_forward_length": config.intermediate_size,
            "expert_shared_count": 0,
        },
        latent,
    ),
}
