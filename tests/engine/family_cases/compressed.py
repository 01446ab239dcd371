"""Families with attention to compressed keys, which stand for several tokens each.

Indexers have many heads, so that no two keys have the score zero. Among equal scores transformers' choice depends on
the number of keys, so that a forward pass over a whole text differs from `generate`, whose choice is Octavo's.
"""

from __future__ import annotations

from typing import Any

from family_cases.case import WINDOW, Case

_SLIDING, _SPARSE, _HEAVY = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"
_SIZES: dict[str, Any] = {
    "num_key_value_heads": 1,
    "head_dim": 24,
    "q_lora_rank": 20,
    "moe_intermediate_size": 35,
    "n_routed_experts": 6,
    "num_experts_per_tok": 3,
    "o_groups": 4,
    "o_lora_rank": 10,
    "index_n_heads": 16,
    "index_head_dim": 12,
    "index_topk": 5,
    "sliding_window": WINDOW,
    "partial_rotary_factor": 0.34,
    "compress_rates": {_SPARSE: 4, _HEAVY: 12},
    "layer_types": [_HEAVY, _SLIDING, _SPARSE],
    "mlp_layer_types": ["hash_moe", "moe", "moe"],
    "hc_mult": 3,
    "swiglu_limit": 0.8,
}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 3000.0}

CASES = {
    "deepseek-v4": Case("DeepseekV4", _SIZES),
    "deepseek-v4-uneven": Case(
        "DeepseekV4",
        {
            **_SIZES,
            "hidden_size": 72,
            "num_attention_heads": 9,
            "o_groups": 3,
            "index_topk": 3,
            "partial_rotary_factor": 1.0,
            "index_head_dim": 24,
            "compress_rates": {_SPARSE: 3, _HEAVY: 40},
            "layer_types": [_SPARSE, _HEAVY, _SPARSE],
            "mlp_layer_types": ["moe", "hash_moe", "moe"],
            "rope_parameters": {**_YARN, "truncate": False},
            "scoring_func": "sigmoid",
            "hc_mult": 2,
            "hc_sinkhorn_iters": 3,
            "mlp_bias": True,
            "tie_word_embeddings": True,
        },
    ),
    "deepseek-v4-windows": Case("DeepseekV4", {**_SIZES, "layer_types": [_SLIDING] * 3, "o_groups": 1}),
}

PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {}
