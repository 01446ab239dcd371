"""Families of which some layers keep a state."""

from __future__ import annotations

from typing import Any

from family_cases.case import UNEVEN, Case

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
    )
}
