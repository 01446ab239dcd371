"""Families whose layers have attention and one dense feed-forward."""

from __future__ import annotations

from typing import Any

from checkpoints import UNEVEN as UNEVEN_BIASED

from family_cases.case import HEADS_OF_16, LLAMA_SIZES, UNEVEN, WINDOW, Case

LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 500.0,
    "short_factor": [1.0, 1.1, 1.3, 1.7],
    "long_factor": [1.5, 2.0, 4.0, 7.0],
}
CASES = {
    "qwen2": Case("Qwen2", {"tie_word_embeddings": True}),
    "qwen2-windows": Case(
        "Qwen2", {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 2, "num_hidden_layers": 4}
    ),
    "qwen2-uneven": Case("Qwen2", {**UNEVEN}),
    "mistral": Case("Mistral", {"sliding_window": WINDOW, "head_dim": 24}),
    "mistral-no-window": Case("Mistral", {"sliding_window": None, **UNEVEN}),
    "phi3": Case("Phi3", {"sliding_window": WINDOW}),
    "phi3-uneven": Case("Phi3", {**UNEVEN, "tie_word_embeddings": True}),
    "phi3-short": Case(
        "Phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 128}, 128, (1, 17, 60, 33)
    ),
    "phi3-long": Case(
        "Phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 128}, 256, (131, 150, 190, 140)
    ),
    "phi3-partial": Case("Phi3", {**HEADS_OF_16, "partial_rotary_factor": 0.75}),
    "granite": Case(
        "Granite",
        {
            "embedding_multiplier": 1.5,
            "attention_multiplier": 0.2,
            "residual_multiplier": 0.7,
            "logits_scaling": 3.0,
            "tie_word_embeddings": True,
        },
    ),
    "granite-biases": Case(
        "Granite", {**UNEVEN_BIASED, "mlp_bias": True, "residual_multiplier": 0.5, "attention_multiplier": 0.4}
    ),
    "olmo2": Case("Olmo2"),
    "olmo2-uneven": Case("Olmo2", UNEVEN_BIASED),
    "cohere2": Case("Cohere2", {"sliding_window": WINDOW, "num_hidden_layers": 5, "logit_scale": 0.5}),
    "cohere2-biases": Case(
        "Cohere2",
        {
            **UNEVEN_BIASED,
            "sliding_window": WINDOW,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "tie_word_embeddings": False,
            "logit_scale": 2.0,
        },
    ),
    "stablelm": Case("StableLm", {**HEADS_OF_16, "use_qkv_bias": True}),
    "stablelm-parallel": Case(
        "StableLm",
        {**UNEVEN, "partial_rotary_factor": 0.5, "use_parallel_residual": True, "qk_layernorm": True},
    ),
    "stablelm-qk-norm": Case("StableLm", {"partial_rotary_factor": 1.0, "qk_layernorm": True}),
    "gemma2": Case(
        "Gemma2",
        {
            "head_dim": 16,
            "sliding_window": WINDOW,
            "query_pre_attn_scalar": 24,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 9.0,
        },
    ),
    "gemma2-no-caps": Case(
        "Gemma2",
        {
            **UNEVEN_BIASED,
            "head_dim": 24,
            "sliding_window": WINDOW,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
        },
    ),
}

PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {
    "Qwen2ForCausalLM": (  # Qwen2.5-7B
        {
            "hidden_size": 3584,
            "intermediate_size": 18944,
            "num_hidden_layers": 28,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "vocab_size": 152064,
            "max_window_layers": 28,
            "sliding_window": 131072,
            "use_sliding_window": False,
            "tie_word_embeddings": False,
        },
        7_615_616_512,
    ),
    "MistralForCausalLM": (  # Mistral-7B-v0.3
        {**LLAMA_SIZES, "intermediate_size": 14336, "vocab_size": 32768, "sliding_window": None},
        7_248_023_552,
    ),
    "Phi3ForCausalLM": (  # Phi-3-mini-4k
        {
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "vocab_size": 32064,
            "sliding_window": 2047,
            "rope_scaling": None,
        },
        3_821_079_552,
    ),
    "GraniteForCausalLM": (  # granite-3.1-8b
        {
            **LLAMA_SIZES,
            "intermediate_size": 12800,
            "num_hidden_layers": 40,
            "vocab_size": 49155,
            "tie_word_embeddings": True,
            "attention_multiplier": 0.0078125,
            "embedding_multiplier": 1.5,
            "logits_scaling": 16.0,
            "residual_multiplier": 0.22,
        },
        8_170_848_256,
    ),
    "Olmo2ForCausalLM": (  # OLMo-2-1124-7B
        {**LLAMA_SIZES, "num_key_value_heads": 32, "intermediate_size": 11008, "vocab_size": 100352},
        7_298_617_344,
    ),
    "Cohere2ForCausalLM": (  # c4ai-command-r7b-12-2024, which names no tie and no layer_types
        {
            **LLAMA_SIZES,
            "head_dim": 128,
            "intermediate_size": 14336,
            "vocab_size": 256000,
            "layer_norm_eps": 1e-05,
            "logit_scale": 0.25,
            "sliding_window": 4096,
            "sliding_window_pattern": 4,
        },
        8_028_033_024,
    ),
    "StableLmForCausalLM": (  # stablelm-2-1_6b
        {
            "hidden_size": 2048,
            "intermediate_size": 5632,
            "num_hidden_layers": 24,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "vocab_size": 100352,
            "layer_norm_eps": 1e-05,
            "partial_rotary_factor": 0.25,
            "use_qkv_bias": True,
        },
        1_644_515_328,
    ),
    "Gemma2ForCausalLM": (  # gemma-2-2b
        {
            "hidden_size": 2304,
            "intermediate_size": 9216,
            "num_hidden_layers": 26,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "vocab_size": 256000,
            "hidden_act": "gelu_pytorch_tanh",
            "hidden_activation": "gelu_pytorch_tanh",
            "cache_implementation": "hybrid",
        },
        2_614_341_888,
    ),
}
