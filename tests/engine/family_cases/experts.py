"""Families with mixtures of experts."""

from __future__ import annotations

from typing import Any

from checkpoints import UNEVEN as UNEVEN_BIASED

from family_cases.case import LLAMA_SIZES, UNEVEN, WINDOW, Case

CASES = {
    "gemma4-experts": Case(
        "Gemma4",
        {
            "head_dim": 16,
            "global_head_dim": 24,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            "sliding_window": 8,
            "vocab_size_per_layer_input": 131,
            "hidden_size_per_layer_input": 12,
            "enable_moe_block": True,
            "num_experts": 6,
            "top_k_experts": 3,
            "moe_intermediate_size": 40,
            "final_logit_softcapping": 9.0,
            "tie_word_embeddings": False,
        },
    ),
    "qwen3-moe": Case(
        "Qwen3Moe",
        {
            "head_dim": 24,
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 40,
            "norm_topk_prob": True,
            "mlp_only_layers": [1],
        },
    ),
    "qwen3-moe-not-normalised": Case(
        "Qwen3Moe",
        {
            **UNEVEN_BIASED,
            "num_experts": 5,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 35,
            "decoder_sparse_step": 2,
            "hidden_act": "relu",
            "use_sliding_window": True,
            "sliding_window": WINDOW,
        },
    ),
    "mixtral": Case("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "mixtral-windows": Case(
        "Mixtral",
        {**UNEVEN, "num_local_experts": 5, "num_experts_per_tok": 1, "sliding_window": WINDOW},
    ),
    "qwen2-moe": Case(
        "Qwen2Moe",
        {
            **UNEVEN,
            "num_experts": 5,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 35,
            "shared_expert_intermediate_size": 50,
            "norm_topk_prob": True,
            "decoder_sparse_step": 2,
            "use_sliding_window": True,
            "sliding_window": WINDOW,
            "max_window_layers": 3,
        },
    ),
    "olmoe": Case("Olmoe", {**UNEVEN_BIASED, "num_experts": 5, "num_experts_per_tok": 3, "clip_qkv": 0.8}),
    "flex-olmo": Case("FlexOlmo", {"num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": True}),
    "granite-moe": Case(
        "GraniteMoe",
        {
            **UNEVEN_BIASED,
            "num_local_experts": 5,
            "embedding_multiplier": 3.0,
            "logits_scaling": 2.0,
            "residual_multiplier": 0.6,
            "attention_multiplier": 0.2,
        },
    ),
    "granite-moe-shared": Case("GraniteMoeShared", {"num_local_experts": 4, "shared_intermediate_size": 40}),
    "granite-moe-swa": Case(
        "GraniteMoeSWA",
        {
            "num_local_experts": 4,
            "shared_intermediate_size": 40,
            "sliding_window": WINDOW,
            "layer_rope_theta": [10000.0, 500.0, 0],
        },
    ),
    "glm4-moe": Case(
        "Glm4Moe",
        {
            "attention_bias": True,
            "head_dim": 16,
            "use_qk_norm": True,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "n_group": 4,
            "topk_group": 2,
            "n_shared_experts": 2,
            "moe_intermediate_size": 36,
            "routed_scaling_factor": 1.7,
        },
    ),
    "solar-open": Case(
        "SolarOpen",
        {
            "head_dim": 16,
            "n_routed_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 36,
            "norm_topk_prob": False,
        },
    ),
    "dots1": Case(
        "Dots1",
        {
            **UNEVEN_BIASED,
            "n_routed_experts": 6,
            "num_experts_per_tok": 2,
            "n_shared_experts": 1,
            "moe_intermediate_size": 44,
            "first_k_dense_replace": 1,
            "sliding_window": WINDOW,
            "max_window_layers": 2,
            "hidden_act": "gelu_pytorch_tanh",
        },
    ),
    "mimo-v2": Case(
        "MiMoV2Flash",
        {
            "hidden_size": 72,
            "num_attention_heads": 12,
            "num_key_value_heads": 3,
            "head_dim": 24,
            "v_head_dim": 10,
            "attention_bias": True,
            "num_hidden_layers": 3,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "sliding_window": WINDOW,
            "n_routed_experts": 6,
            "num_experts_per_tok": 3,
            "n_group": 3,
            "topk_group": 2,
            "moe_intermediate_size": 44,
            "routed_scaling_factor": 1.7,
        },
    ),
    "exaone-moe": Case(
        "ExaoneMoe",
        {
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 36,
            "sliding_window": WINDOW,
            "sliding_window_pattern": 2,
            "n_group": 2,
            "topk_group": 1,
        },
    ),
    "ernie-moe": Case(
        "Ernie4_5_Moe",
        {
            "use_bias": True,
            "moe_num_experts": 5,
            "moe_k": 2,
            "moe_intermediate_size": 36,
            "moe_norm_min": 0.3,
            "moe_layer_end_index": 1,
        },
    ),
    "minimax-m2": Case(
        "MiniMaxM2", {"head_dim": 16, "rotary_dim": 8, "num_local_experts": 6, "num_experts_per_tok": 3}
    ),
    "phimoe": Case(
        "Phimoe", {"num_local_experts": 5, "attention_bias": True, "lm_head_bias": True, "router_jitter_noise": 0.2}
    ),
    "hy-v3": Case(
        "HYV3",
        {
            **UNEVEN_BIASED,
            "head_dim": 16,
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 36,
            "mlp_layer_types": ["sparse", "dense", "sparse"],
        },
    ),
    "cohere2-moe": Case(
        "Cohere2Moe",
        {
            "head_dim": 16,
            "num_hidden_layers": 4,
            "num_experts": 5,
            "num_shared_experts": 1,
            "first_k_dense_replace": 2,
            "prefix_dense_intermediate_size": 70,
            "sliding_window": WINDOW,
            "sliding_window_pattern": 2,
            "expert_selection_fn": "sigmoid",
            "tie_word_embeddings": False,
            "logit_scale": 0.5,
        },
    ),
    "cohere2-moe-rms": Case(
        "Cohere2Moe",
        {
            **UNEVEN_BIASED,
            "head_dim": 16,
            "num_experts": 5,
            "num_shared_experts": 2,
            "shared_expert_combination_strategy": "sum",
            "rms_norm_eps": 1e-5,
            "sliding_window": WINDOW,
            "sliding_window_pattern": 3,
            "tie_word_embeddings": False,
            "logit_scale": 0.7,
        },
    ),
    "mellum": Case(
        "Mellum",
        {
            "head_dim": 16,
            "num_local_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 36,
            "norm_topk_prob": False,
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "mlp_layer_types": ["sparse", "sparse", "dense"],
        },
    ),
    "aria-text": Case("AriaText", {**UNEVEN_BIASED, "moe_num_experts": 5, "moe_topk": 3, "moe_num_shared_experts": 1}),
    "afmoe": Case(
        "Afmoe",
        {
            **UNEVEN,
            "head_dim": 16,
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "num_shared_experts": 1,
            "moe_intermediate_size": 36,
            "route_scale": 1.5,
            "global_attn_every_n_layers": 2,
            "sliding_window": WINDOW,
            "mup_enabled": True,
        },
        std=0.4,
    ),
    "laguna": Case(
        "Laguna",
        {
            "head_dim": 16,
            "num_attention_heads_per_layer": [8, 4, 6],
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 36,
            "shared_expert_intermediate_size": 44,
            "moe_routed_scaling_factor": 1.5,
            "moe_router_logit_softcapping": 2.0,
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "laguna-gates": Case(
        "Laguna",
        {
            **UNEVEN_BIASED,
            "gating": "per-element",
            "head_dim": 16,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 36,
            "shared_expert_intermediate_size": 44,
        },
    ),
    "dbrx": Case(
        "Dbrx",
        {
            "d_model": 72,
            "n_heads": 9,
            "n_layers": 3,
            "max_seq_len": 512,
            "attn_config": {"kv_n_heads": 3, "clip_qkv": 1.5, "rope_theta": 10000.0},
            "ffn_config": {"ffn_hidden_size": 35, "moe_num_experts": 5, "moe_top_k": 3},
            "hidden_size": 72,
            "num_attention_heads": 9,
        },
    ),
    "llama4": Case(
        "Llama4",
        {
            "head_dim": 16,
            "intermediate_size_mlp": 72,
            "num_hidden_layers": 4,
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "interleave_moe_layer_step": 2,
            "no_rope_layer_interval": 3,
            "attention_chunk_size": 11,
            "floor_scale": 7,
            "attn_scale": 0.3,
        },
    ),
    "hunyuan-moe": Case(
        "HunYuanMoEV1", {"head_dim": 16, "num_experts": 5, "moe_topk": [1, 2, 3], "attention_bias": True}
    ),
}

PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {
    "Qwen3MoeForCausalLM": (  # Qwen3-30B-A3B
        {
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "num_hidden_layers": 48,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "vocab_size": 151936,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 768,
            "norm_topk_prob": True,
            "mlp_only_layers": [],
        },
        30_532_122_624,
    ),
    "MixtralForCausalLM": (  # Mixtral-8x7B-v0.1
        {**LLAMA_SIZES, "intermediate_size": 14336, "vocab_size": 32000, "num_local_experts": 8},
        46_702_792_704,
    ),
}
