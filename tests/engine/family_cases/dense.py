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
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
CASES = {
    "llama-dynamic": Case("Llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1000.0, "factor": 4.0}}),
    "llama-proportional": Case(
        "Llama",
        {
            "head_dim": 16,
            "rope_parameters": {
                "rope_type": "proportional",
                "rope_theta": 1000.0,
                "partial_rotary_factor": 0.5,
                "factor": 2.0,
            },
        },
    ),
    "chameleon": Case(
        "Chameleon",
        {
            "swin_norm": True,
            "vocabulary_map": {"<image>": 5, "IMGIMGAZ": 20, "IMGIMGBZ": 125, "a": 3},
            "vq_config": {"embed_dim": 8, "num_embeddings": 16, "base_channels": 32, "channel_multiplier": [1]},
        },
    ),
    "qwen2": Case("Qwen2", {"tie_word_embeddings": True}),
    "qwen2-windows": Case(
        "Qwen2", {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 2, "num_hidden_layers": 4}
    ),
    "qwen2-uneven": Case("Qwen2", {**UNEVEN}),
    "qwen3-windows": Case(
        "Qwen3", {"head_dim": 16, "use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}
    ),
    "mistral": Case("Mistral", {"sliding_window": WINDOW, "head_dim": 24}),
    "mistral-no-window": Case("Mistral", {"sliding_window": None, **UNEVEN}),
    "phi3": Case("Phi3", {"sliding_window": WINDOW}),
    "phi3-uneven": Case("Phi3", {**UNEVEN, "tie_word_embeddings": True}),
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
    "cohere-compass": Case(
        "CohereCompass",
        {
            **UNEVEN_BIASED,
            "sliding_window": WINDOW,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "rope_parameters": {
                "full_attention": None,
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0, "mrope_section": [2, 1, 1]},
            },
            "logit_scale": 0.5,
        },
    ),
    "cohere-compass-linear": Case(
        "CohereCompass",
        {
            "rope_parameters": {"full_attention": {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}},
            "tie_word_embeddings": False,
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
    "vaultgemma": Case("VaultGemma", {"head_dim": 16, "sliding_window": WINDOW, "query_pre_attn_scalar": 24}),
    "gemma": Case("Gemma", {"head_dim": 16, "attention_bias": True, "tie_word_embeddings": False}),
    "gemma3": Case(
        "Gemma3",
        {
            **UNEVEN_BIASED,
            "head_dim": 16,
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "query_pre_attn_scalar": 24,
            "final_logit_softcapping": 9.0,
            "tie_word_embeddings": False,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
                "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5000.0},
            },
        },
    ),
    "gemma3n": Case(
        "Gemma3n",
        {
            "intermediate_size": [96, 110, 96, 64, 96, 96],
            "num_hidden_layers": 6,
            "layer_types": ["sliding_attention", "full_attention"] * 3,
            "head_dim": 16,
            "sliding_window": WINDOW,
            "vocab_size_per_layer_input": 120,
            "hidden_size_per_layer_input": 12,
            "num_kv_shared_layers": 2,
            "activation_sparsity_pattern": [0.9, 0.5, 0.0, 0.0, 0.0, 0.7],
            "altup_num_inputs": 3,
            "altup_active_idx": 1,
            "laurel_rank": 10,
            "final_logit_softcapping": 9.0,
            "attention_bias": True,
            "tie_word_embeddings": False,
        },
    ),
    "gemma4": Case(
        "Gemma4",
        {
            "num_hidden_layers": 6,
            "layer_types": ["sliding_attention", "full_attention"] * 3,
            "head_dim": 16,
            "global_head_dim": 24,
            "sliding_window": WINDOW,
            "vocab_size_per_layer_input": 131,
            "hidden_size_per_layer_input": 12,
            "num_kv_shared_layers": 2,
            "use_double_wide_mlp": True,
            "final_logit_softcapping": 9.0,
            "attention_bias": True,
            "tie_word_embeddings": False,
        },
    ),
    "gemma4-plain": Case(
        "Gemma4",
        {
            **UNEVEN_BIASED,
            "head_dim": 16,
            "global_head_dim": 32,
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            "hidden_size_per_layer_input": 0,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "tie_word_embeddings": False,
        },
    ),
    "gemma4-unified": Case(
        "Gemma4Unified",
        {
            "num_hidden_layers": 4,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "head_dim": 16,
            "global_head_dim": 24,
            "sliding_window": WINDOW,
            "num_kv_shared_layers": 2,
            "use_double_wide_mlp": True,
            "tie_word_embeddings": False,
        },
    ),
    "bitnet": Case("BitNet", UNEVEN_BIASED),
    "emu3": Case(
        "Emu3",
        {**UNEVEN, "attention_bias": True, "bos_token_id": 1, "pad_token_id": 0, "rope_parameters": YARN},
    ),
    "olmo": Case("Olmo", {"clip_qkv": 2.0, "attention_bias": True}),
    "olmo3": Case(
        "Olmo3",
        {
            **UNEVEN_BIASED,
            "sliding_window": WINDOW,
            "num_hidden_layers": 4,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
                "full_attention": YARN,
            },
        },
    ),
    "cohere": Case("Cohere", {**UNEVEN_BIASED, "use_qk_norm": True, "logit_scale": 0.5, "tie_word_embeddings": False}),
    "smollm3": Case(
        "SmolLM3",
        {
            **UNEVEN_BIASED,
            "mlp_bias": True,
            "num_hidden_layers": 4,
            "no_rope_layers": [1, 0, 1, 0],
            "use_sliding_window": True,
            "sliding_window": WINDOW,
            "tie_word_embeddings": False,
        },
    ),
    "ministral": Case(
        "Ministral",
        {
            **UNEVEN,
            "head_dim": 16,
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "ministral3": Case(
        "Ministral3",
        {
            "head_dim": 16,
            "sliding_window": 24,
            "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.7, "llama_4_scaling_beta": 0.4},
        },
    ),
    "arcee": Case("Arcee", {**UNEVEN_BIASED, "mlp_bias": True}),
    "jais2": Case("Jais2", {**UNEVEN, "head_dim": 16}),
    "nemotron": Case("Nemotron", {**HEADS_OF_16, "attention_bias": True, "mlp_bias": True}),
    "starcoder2": Case(
        "Starcoder2", {**UNEVEN, "hidden_size": 76, "sliding_window": WINDOW, "tie_word_embeddings": False}
    ),
    "hunyuan": Case(
        "HunYuanDenseV1",
        {
            **UNEVEN_BIASED,
            "head_dim": 16,
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1000.0, "alpha": 50.0, "factor": 1.0},
        },
    ),
    "exaone4": Case("Exaone4", {"num_hidden_layers": 4, "sliding_window": WINDOW, "sliding_window_pattern": 2}),
    "exaone4-no-window": Case("Exaone4", {**UNEVEN, "sliding_window": None, "layer_types": ["full_attention"] * 3}),
    "glm": Case("Glm", {"head_dim": 16}),
    "glm4": Case("Glm4", {**UNEVEN, "head_dim": 25, "partial_rotary_factor": 0.3, "attention_bias": False}),
    "ernie4_5": Case("Ernie4_5", {**UNEVEN, "head_dim": 16, "use_bias": True, "tie_word_embeddings": False}),
    "helium": Case("Helium", {"head_dim": 8, "num_key_value_heads": 4, "attention_bias": True, "mlp_bias": True}),
    "seed_oss": Case("SeedOss", {**UNEVEN_BIASED, "head_dim": 16, "attention_out_bias": True, "mlp_bias": True}),
    "apertus": Case("Apertus", {**UNEVEN_BIASED}),
    "cwm": Case("Cwm", {**UNEVEN, "head_dim": 16, "sliding_window": WINDOW, "num_hidden_layers": 5, "bos_token_id": 1}),
    "hrm-text": Case(
        "HrmText",
        {
            "num_hidden_layers": 2,
            "num_key_value_heads": ...,
            "head_dim": 12,
            "H_cycles": 2,
            "L_cycles": 2,
            "embedding_scale": 3.0,
            "rms_norm_eps": 0.01,
        },
        std=0.12,
    ),
    "hrm-text-plain": Case(
        "HrmText",
        {**UNEVEN, "num_hidden_layers": 1, "num_key_value_heads": ..., "head_dim": 8, "H_cycles": 3, "L_cycles": 1},
        std=0.15,
    ),
    "hyperclovax": Case(
        "HyperCLOVAX",
        {
            **UNEVEN_BIASED,
            "mlp_bias": True,
            "head_dim": 8,
            "embedding_multiplier": 1.5,
            "logits_scaling": 0.5,
            "residual_multiplier": 0.7,
            "attention_multiplier": 0.2,
        },
    ),
    "nanochat": Case("NanoChat", {**UNEVEN_BIASED, "final_logit_softcapping": 9.0, "rope_parameters": YARN}),
    "diffllama": Case("DiffLlama", {"num_key_value_heads": 4, "rope_parameters": YARN}),
    "diffllama-wide-heads": Case(
        "DiffLlama",
        {
            "hidden_size": 72,
            "num_attention_heads": 12,
            "num_key_value_heads": 6,
            "head_dim": 16,
            "intermediate_size": 110,
            "attention_bias": True,
            "tie_word_embeddings": True,
        },
    ),
    "doge": Case("Doge", {"rope_parameters": YARN}),
    "doge-biases": Case("Doge", {**UNEVEN_BIASED, "head_dim": 10, "mlp_bias": True, "sliding_window": WINDOW}),
    "granite_swa": Case(
        "GraniteSWA",
        {
            **UNEVEN_BIASED,
            "sliding_window": WINDOW,
            "num_hidden_layers": 4,
            "layer_rope_theta": [100.0, 0, 500.0, 0],
            "attention_multiplier": 0.3,
            "residual_multiplier": 0.7,
            "embedding_multiplier": 2.0,
            "logits_scaling": 2.0,
            "tie_word_embeddings": False,
        },
    ),
}

_GEMMA_7B = {
    "hidden_size": 3072,
    "intermediate_size": 24576,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 256,
    "vocab_size": 256000,
    "hidden_act": "gelu",
}
PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {
    "GemmaForCausalLM": (_GEMMA_7B, 8_537_680_896),
    "Gemma3ForCausalLM": (  # gemma-3-1b
        {
            "hidden_size": 1152,
            "intermediate_size": 6912,
            "num_hidden_layers": 26,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "head_dim": 256,
            "vocab_size": 262144,
            "hidden_activation": "gelu_pytorch_tanh",
            "rope_theta": 1000000,
            "rope_local_base_freq": 10000,
            "rope_scaling": None,
            "sliding_window": 512,
            "sliding_window_pattern": 6,
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
            "query_pre_attn_scalar": 256,
        },
        999_885_952,
    ),
    "Starcoder2ForCausalLM": (  # starcoder2-3b
        {
            "hidden_size": 3072,
            "intermediate_size": 12288,
            "num_hidden_layers": 30,
            "num_attention_heads": 24,
            "num_key_value_heads": 2,
            "vocab_size": 49152,
            "hidden_act": "gelu_pytorch_tanh",
            "sliding_window": 4096,
            "norm_epsilon": 1e-5,
            "use_bias": True,
        },
        3_030_371_328,
    ),
    "SmolLM3ForCausalLM": (  # SmolLM3-3B
        {
            "hidden_size": 2048,
            "intermediate_size": 11008,
            "num_hidden_layers": 36,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "vocab_size": 128256,
            "rope_theta": 5000000.0,
            "rope_scaling": None,
            "use_sliding_window": False,
            "sliding_window": None,
        },
        3_075_098_624,
    ),
    "CohereForCausalLM": (  # c4ai-command-r-v01
        {
            "hidden_size": 8192,
            "intermediate_size": 22528,
            "num_hidden_layers": 40,
            "num_attention_heads": 64,
            "num_key_value_heads": 64,
            "vocab_size": 256000,
            "rope_theta": 8000000.0,
            "logit_scale": 0.0625,
            "use_qk_norm": False,
        },
        34_980_831_232,
    ),
    "Glm4ForCausalLM": (  # GLM-4-9B-0414
        {
            "hidden_size": 4096,
            "intermediate_size": 13696,
            "num_hidden_layers": 40,
            "num_attention_heads": 32,
            "num_key_value_heads": 2,
            "head_dim": 128,
            "vocab_size": 151552,
            "partial_rotary_factor": 0.5,
        },
        9_400_279_040,
    ),
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
