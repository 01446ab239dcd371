"""Families with a state in some of their layers."""

from __future__ import annotations

from typing import Any

from family_cases.case import UNEVEN, WINDOW, Case

DELTA = {
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 3,
    "rms_norm_eps": 0.01,
}
GATED = {"head_dim": 16}
EXPERTS = {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 36,
}
INDEXED = {
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 16,
    "indexer_budget": 156,
    "indexer_compress_ratio": 6,
}
CONVOLVED = {
    "head_dim": 8,
    "num_experts": 6,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 40,
    "router_hidden_size": 20,
    "rms_norm_eps": 0.01,
}
CASES = {
    "lfm2": Case(
        "Lfm2",
        {
            **UNEVEN,
            "layer_types": ["conv", "full_attention", "conv"],
            "conv_bias": True,
            "conv_L_cache": 4,
            "block_multiple_of": 22,
            "block_ffn_dim_multiplier": 1.3,
            "norm_eps": 0.01,
            "tie_word_embeddings": False,
        },
    ),
    "lfm3": Case(
        "Lfm3",
        {
            **UNEVEN,
            "head_dim": 16,
            "num_hidden_layers": 4,
            "layer_types": ["conv", "sliding_attention", "full_attention", "conv"],
            "sliding_window": WINDOW,
            "conv_bias": True,
            "conv_L_cache": 4,
            "attention_bias": True,
            "norm_eps": 0.01,
            "tie_word_embeddings": False,
        },
    ),
    "bailing-hybrid": Case(
        "BailingHybrid",
        {
            "num_key_value_heads": 8,
            "head_dim": 12,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "short_conv_kernel_size": 3,
            "kda_lower_bound": -2.0,
            "kv_lora_rank": 24,
            "qk_nope_head_dim": 10,
            "qk_rope_head_dim": 6,
            "v_head_dim": 14,
            "attention_bias": True,
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "n_group": 3,
            "topk_group": 2,
            "moe_intermediate_size": 24,
            "first_k_dense_replace": 1,
            "num_mtp_layers": 0,
            "rms_norm_eps": 0.01,
        },
    ),
    "kimi-linear": Case(
        "KimiLinear",
        {
            "num_key_value_heads": 8,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "linear_num_heads": 5,
            "linear_head_dim": 12,
            "linear_conv_kernel_dim": 3,
            "kv_lora_rank": 24,
            "qk_nope_head_dim": 10,
            "qk_rope_head_dim": 6,
            "v_head_dim": 14,
            "q_lora_rank": 20,
            "attention_bias": True,
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "n_group": 3,
            "topk_group": 2,
            "moe_intermediate_size": 24,
            "n_shared_experts": 2,
            "rms_norm_eps": 0.01,
        },
    ),
    "qwen3-next": Case(
        "Qwen3Next",
        {**DELTA, **EXPERTS, "mlp_only_layers": [1], "norm_topk_prob": False, "attention_bias": True, **GATED},
    ),
    "qwen3-5": Case("Qwen3_5", {**UNEVEN, **DELTA, **GATED, "linear_num_key_heads": 3, "linear_num_value_heads": 9}),
    "qwen3-5-moe": Case("Qwen3_5Moe", {**DELTA, **EXPERTS, **GATED, "linear_num_key_heads": 1}, std=0.15),
    "qwen4-exp": Case(
        "Qwen4Exp",
        {
            **DELTA,
            **EXPERTS,
            **INDEXED,
            **GATED,
            "layer_types": ["linear_attention", "indexed_attention", "linear_attention"],
            "attention_bias": True,
            "hc_count": 3,
            "hc_lowrank": 10,
            "norm_topk_prob": False,
            "output_gate_type": "sigmoid",
            "rope_parameters": {"rope_type": "default", "rope_theta": 300.0, "partial_rotary_factor": 0.5},
        },
        lengths=(70, 17, 90, 33, 60, 24),  # alone, its first step samples nothing
        std=0.15,
    ),
    "qwen4-exp-plain": Case("Qwen4Exp", {**DELTA, **EXPERTS, **INDEXED, **GATED, "hc_lowrank": 7}, std=0.15),
    "minimax": Case(
        "MiniMax",
        {
            **UNEVEN,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "sliding_window": WINDOW,
            "num_local_experts": 5,
            "rms_norm_eps": 0.01,
            "full_attn_alpha_factor": 1.7,
            "full_attn_beta_factor": 0.8,
            "linear_attn_alpha_factor": 1.3,
            "linear_attn_beta_factor": 1.2,
            "mlp_alpha_factor": 1.4,
            "mlp_beta_factor": 0.6,
        },
    ),
    "olmo-hybrid": Case("OlmoHybrid", {**DELTA, "rope_parameters": None}),
    "zaya": Case("Zaya", {**CONVOLVED, "num_hidden_layers": 4}),
    "zaya-windows": Case(
        "Zaya",
        {
            **CONVOLVED,
            **UNEVEN,
            "layer_types": ["hybrid_sliding", "hybrid", "hybrid_sliding"],
            "sliding_window": WINDOW,
            "rope_parameters": {
                "hybrid": {"rope_type": "default", "rope_theta": 1000.0},
                "hybrid_sliding": {"rope_type": "linear", "rope_theta": 50.0, "factor": 2.0},
            },
            "cca_time0": 3,
            "hidden_act": "gelu",
            "attention_bias": True,
            "lm_head_bias": True,
            "tie_word_embeddings": False,
        },
        std=0.15,
    ),
}
PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {
    "Lfm2ForCausalLM": (  # LFM2-1.2B
        {
            "block_ff_dim": 12288,
            "block_use_swiglu": True,
            "full_attn_idxs": [2, 5, 8, 10, 12, 14],
            "hidden_size": 2048,
            "num_attention_heads": 32,
            "num_hidden_layers": 16,
            "num_key_value_heads": 8,
            "vocab_size": 65536,
        },
        1170340608,
    ),
}
