"""Families with mixtures of experts."""

from __future__ import annotations

from typing import Any

from checkpoints import UNEVEN as UNEVEN_BIASED

from family_cases.case import LLAMA_SIZES, UNEVEN, WINDOW, Case

CASES = {
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
            "use_sliding_window": True,
            "sliding_window": WINDOW,
        },
    ),
    "mixtral": Case("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "mixtral-windows": Case(
        "Mixtral",
        {**UNEVEN, "num_local_experts": 5, "num_experts_per_tok": 1, "sliding_window": WINDOW},
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
