"""Families from before Llama: LayerNorm, no gates, positions that are learned or biases of scores."""

from __future__ import annotations

from typing import Any

from family_cases.case import UNEVEN, WINDOW, Case

FOUR_WIDE = {**UNEVEN, "n_inner": UNEVEN["intermediate_size"]}
CASES = {
    "gpt2": Case("GPT2"),
    "gpt2-by-depth": Case(
        "GPT2",
        {
            **FOUR_WIDE,
            "scale_attn_by_inverse_layer_idx": True,
            "activation_function": "quick_gelu",
        },
    ),
    "gpt2-not-scaled": Case(
        "GPT2", {"scale_attn_weights": False, "activation_function": "relu", "tie_word_embeddings": False}
    ),
    "gpt-bigcode": Case("GPTBigCode", FOUR_WIDE),
    "gpt-bigcode-all-heads": Case("GPTBigCode", {**FOUR_WIDE, "multi_query": False, "tie_word_embeddings": False}),
    "gpt-neo": Case("GPTNeo", {"attention_types": [[["global", "local", "local"], 1]], "window_size": WINDOW}),
    "gptj": Case("GPTJ", {**FOUR_WIDE, "rotary_dim": 4}),
    "gptj-whole-heads": Case("GPTJ", {"rotary_dim": 8, "tie_word_embeddings": True, "activation_function": "gelu"}),
    "codegen": Case("CodeGen", {"rotary_dim": 4, "n_inner": 110}),
}

PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {
    "GPT2LMHeadModel": ({"n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024}, 124_439_808),
    "GPTBigCodeForCausalLM": (  # santacoder
        {"n_embd": 2048, "n_layer": 24, "n_head": 16, "n_positions": 2048, "n_inner": 8192, "vocab_size": 49280},
        1_124_886_528,
    ),
    "GPTNeoForCausalLM": (  # gpt-neo-1.3B
        {"hidden_size": 2048, "num_layers": 24, "num_heads": 16, "max_position_embeddings": 2048, "window_size": 256},
        1_315_575_808,
    ),
    "GPTJForCausalLM": ({"n_embd": 4096, "n_layer": 28, "n_head": 16, "rotary_dim": 64}, 6_050_882_784),
    "CodeGenForCausalLM": (  # codegen-350M-mono, with 51,200 rows of embeddings
        {"n_embd": 1024, "n_layer": 20, "n_head": 16, "rotary_dim": 32, "vocab_size": 51200},
        356_712_448,
    ),
}
