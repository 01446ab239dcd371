"""Families with latent attention, whose KV cache is compressed."""

from __future__ import annotations

from typing import Any

from family_cases.case import WINDOW, Case

_LATENT = {
    "num_key_value_heads": 8,
    "q_lora_rank": 40,
    "kv_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 10,
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "mscale": 0.8,
    "mscale_all_dim": 1.3,
}
_INDEX = {"index_topk": 10, "index_n_heads": 16, "index_head_dim": 12}
"""Many heads, so that no two tokens have the score zero, between which transformers' choice is accidental."""
_EXPERTS = {"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 36}

CASES = {
    "longcat-flash": Case(
        "LongcatFlash",
        {
            **_LATENT,
            "num_layers": 2,
            "num_hidden_layers": 4,
            "head_dim": 8,
            "ffn_hidden_size": 50,
            "expert_ffn_hidden_size": 36,
            "attention_bias": True,
            "n_routed_experts": 5,
            "zero_expert_num": 3,
            "moe_topk": 3,
            "routed_scaling_factor": 2.5,
            "rope_parameters": _YARN,
        },
    ),
    "deepseek-v2": Case(
        "DeepseekV2",
        {
            **_LATENT,
            **_EXPERTS,
            "attention_bias": True,
            "first_k_dense_replace": 1,
            "n_group": 4,
            "topk_group": 2,
            "topk_method": "group_limited_greedy",
            "routed_scaling_factor": 3.0,
            "rope_parameters": _YARN,
        },
    ),
    "deepseek-v2-lite": Case("DeepseekV2", {**_LATENT, **_EXPERTS, "q_lora_rank": None}),
    "deepseek-v3": Case(
        "DeepseekV3",
        {
            **_LATENT,
            **_EXPERTS,
            "attention_bias": True,
            "first_k_dense_replace": 1,
            "n_group": 4,
            "topk_group": 2,
            "rope_parameters": _YARN,
        },
    ),
    "glm4-moe-lite": Case("Glm4MoeLite", {**_LATENT, **_EXPERTS, "rope_interleave": False, "n_shared_experts": 2}),
    "mistral4": Case(
        "Mistral4",
        {
            **_LATENT,
            **_EXPERTS,
            "attention_bias": True,
            "first_k_dense_replace": 1,
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 1.7,
            "rope_parameters": {
                **_YARN,
                "original_max_position_embeddings": 16,
                "llama_4_scaling_beta": 0.4,
                "partial_rotary_factor": 0.4,
            },
        },
    ),
    "axk1": Case("AXK1", {**_LATENT, **_EXPERTS, "n_group": 2, "topk_group": 1}),
    "axk2": Case("AXK2", {**_LATENT, **_EXPERTS, **_INDEX, "gated_norm_rank": 10, "rope_parameters": _YARN}, std=0.2),
    "axk2-groups": Case(
        "AXK2",
        {
            **_LATENT,
            **_EXPERTS,
            "n_group": 4,
            "topk_group": 2,
            "attention_bias": True,
            "mlp_layer_types": ["sparse", "dense", "sparse"],
            "index_n_heads": 2,
        },
    ),
    "deepseek-v32": Case(
        "DeepseekV32",
        {**_LATENT, **_EXPERTS, **_INDEX, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1},
    ),
    "glm-moe-dsa": Case(
        "GlmMoeDsa",
        {
            **_LATENT,
            **_EXPERTS,
            **_INDEX,
            "mlp_layer_types": ["sparse", "dense", "sparse"],
            "indexer_types": ["full", "shared", "full"],
        },
    ),
    "hy-v4": Case(
        "HYV4",
        {
            **_LATENT,
            **_EXPERTS,
            **_INDEX,
            "attention_bias": True,
            "n_group": 4,
            "topk_group": 2,
            "mlp_layer_types": ["sparse", "dense", "sparse"],
            "hc_mult": 3,
            "hc_magnitude": 1.4,
            "hc_eps": 0.02,
            "swiglu_limit": 0.6,
            "rms_norm_eps": 0.01,
            "rope_parameters": _YARN,
        },
        lengths=(70, 17, 90, 33, 60, 24),  # alone, its first step samples nothing
        std=0.12,
    ),
    "hy-v4-plain": Case(
        "HYV4", {**_LATENT, **_EXPERTS, "index_n_heads": 2, "n_shared_experts": 2, "hidden_act": "gelu"}, std=0.12
    ),
    "dots3-note": Case(
        "Dots3Note",
        {
            **_LATENT,
            **_EXPERTS,
            **_INDEX,
            "head_dim": 20,
            "attention_bias": True,
            "n_group": 4,
            "topk_group": 2,
            "num_hidden_layers": 4,
            "mlp_layer_types": ["sparse", "dense", "sparse", "sparse"],
            "layer_types": ["indexed_attention", "sliding_attention", "full_attention", "sliding_attention"],
            "use_dsa": None,
            "sliding_window": WINDOW,
            "shared_experts_intermediate_size": 22,
            "n_shared_experts": 2,
            "rms_norm_eps": 0.01,
            "swa_num_attention_heads": 4,
            "swa_num_key_value_heads": 4,
            "swa_q_lora_rank": 30,
            "swa_kv_lora_rank": 18,
            "swa_head_dim": 16,
            "swa_qk_nope_head_dim": 10,
            "swa_v_head_dim": 14,
            "rope_parameters": {
                "indexed_attention": dict(_YARN),  # transformers adds to it
                "full_attention": {"rope_type": "default", "rope_theta": 300.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
            },
        },
    ),
    "minicpm3": Case(
        "MiniCPM3",
        {**_LATENT, "attention_bias": True, "v_head_dim": None, "dim_model_base": 32, "tie_word_embeddings": False},
    ),
    "youtu": Case("Youtu", {**_LATENT, "q_lora_rank": None, "tie_word_embeddings": False}),
}

PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {
    "DeepseekV2ForCausalLM": (  # DeepSeek-V2-Lite
        {
            "hidden_size": 2048,
            "intermediate_size": 10944,
            "moe_intermediate_size": 1408,
            "num_hidden_layers": 27,
            "num_attention_heads": 16,
            "vocab_size": 102400,
            "q_lora_rank": None,
            "first_k_dense_replace": 1,
            "num_experts_per_tok": 6,
        },
        15_706_484_224,
    ),
    "DeepseekV3ForCausalLM": (  # DeepSeek-V3 without the layer that predicts a second token
        {
            "hidden_size": 7168,
            "num_hidden_layers": 61,
            "num_attention_heads": 128,
            "vocab_size": 129280,
        },
        671_026_419_200,
    ),
}
