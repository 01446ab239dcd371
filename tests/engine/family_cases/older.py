"""Families from before Llama: LayerNorm, no gates, positions that are learned or biases of scores."""

from __future__ import annotations

from typing import Any

from family_cases.case import HEADS_OF_16, UNEVEN, WINDOW, Case

FOUR_WIDE = {**UNEVEN, "n_inner": UNEVEN["intermediate_size"]}
_ALONE = {
    "decoder_layers": 3,
    "decoder_attention_heads": 8,
    "decoder_ffn_dim": 96,
    "d_model": 64,
    "pad_token_id": 1,
    "forced_eos_token_id": None,
}
_DECODER = {"is_decoder": True, "tie_word_embeddings": True}
CASES = {
    "modernbert-decoder": Case(
        "ModernBertDecoder",
        {
            **UNEVEN,
            "bos_token_id": 1,
            "pad_token_id": 0,
            "local_attention": 2 * WINDOW,
            "num_hidden_layers": 4,
            "norm_bias": True,
            "attention_bias": True,
            "mlp_bias": True,
            "classifier_bias": True,
            "classifier_activation": "silu",
            "norm_eps": 0.01,
        },
    ),
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
CASES |= {
    "gpt-neox": Case("GPTNeoX", {**HEADS_OF_16, "rotary_pct": 0.25, "rotary_emb_base": 500.0}),
    "gpt-neox-in-turn": Case(
        "GPTNeoX",
        {
            **UNEVEN,
            "use_parallel_residual": False,
            "attention_bias": False,
            "rotary_pct": 1.0,
            "tie_word_embeddings": True,
            "hidden_act": "gelu_fast",
        },
    ),
    "gpt-neox-japanese": Case(
        "GPTNeoXJapanese", {**HEADS_OF_16, "rotary_pct": 0.5, "rotary_emb_base": 500, "intermediate_multiple_size": 2}
    ),
    "gpt-neox-japanese-whole-heads": Case("GPTNeoXJapanese", {**UNEVEN, "tie_word_embeddings": False}),
    "ctrl": Case("CTRL", {**UNEVEN, "dff": 110, "layer_norm_epsilon": 0.01, "tie_word_embeddings": False}),
    "falcon": Case("Falcon", {**UNEVEN, "tie_word_embeddings": False}),
    "falcon-two-norms": Case(
        "Falcon", {**UNEVEN, "new_decoder_architecture": True, "num_kv_heads": 3, "tie_word_embeddings": False}
    ),
    "falcon-one-norm-alibi": Case(
        "Falcon",
        {
            "new_decoder_architecture": True,
            "num_kv_heads": 2,
            "num_ln_in_parallel_attn": 1,
            "alibi": True,
            "activation": "relu",
            "tie_word_embeddings": False,
        },
    ),
    "falcon-rw": Case(
        "Falcon",
        {
            **UNEVEN,
            "alibi": True,
            "multi_query": False,
            "parallel_attn": False,
            "bias": True,
            "ffn_hidden_size": 110,
            "tie_word_embeddings": False,
        },
    ),
    "opt": Case("OPT", {"ffn_dim": 96}),
    "opt-norms-after": Case(
        "OPT",
        {
            **UNEVEN,
            "ffn_dim": 110,
            "word_embed_proj_dim": 40,
            "do_layer_norm_before": False,
            "activation_function": "gelu",
            "tie_word_embeddings": False,
        },
        std=0.08,
    ),
    "opt-without-biases": Case(
        "OPT",
        {"ffn_dim": 96, "enable_bias": False, "layer_norm_elementwise_affine": False, "tie_word_embeddings": False},
    ),
    "xglm": Case("XGLM", {"ffn_dim": 96, "pad_token_id": 9, "tie_word_embeddings": False}, std=0.08),
    "biogpt": Case("BioGpt", {**UNEVEN, "scale_embedding": False, "tie_word_embeddings": False}),
    "bloom": Case("Bloom", {"hidden_size": 64, "n_layer": 3, "n_head": 8, "tie_word_embeddings": False}),
    "bloom-into-stream": Case(
        "Bloom", {**UNEVEN, "n_layer": 3, "n_head": 8, "apply_residual_connection_post_layernorm": True}, std=0.15
    ),
    "mpt": Case("Mpt", {**UNEVEN, "max_seq_len": 512, "attn_config": {"clip_qkv": 1.5, "softmax_scale": 0.5}}),
    "phi": Case("Phi", {**HEADS_OF_16, "qk_layernorm": True}),
    "phi-whole-heads": Case("Phi", {**UNEVEN, "partial_rotary_factor": 1.0, "tie_word_embeddings": True}),
    "persimmon": Case("Persimmon", HEADS_OF_16),
    "persimmon-no-norms": Case("Persimmon", {**UNEVEN, "qk_layernorm": False, "partial_rotary_factor": 1.0}),
    "bert-decoder": Case("Bert", {**_DECODER, **UNEVEN, "hidden_act": "relu"}, std=0.08),
    "ernie-decoder": Case("Ernie", {**_DECODER, "hidden_act": "gelu_new"}, std=0.08),
    "electra-decoder": Case("Electra", {**_DECODER, "embedding_size": 40, "hidden_act": "relu"}, std=0.08),
    "megatron-bert": Case("MegatronBert", {**_DECODER, **UNEVEN}, std=0.08),
    "openai-gpt": Case("OpenAIGPT", {**UNEVEN, "tie_word_embeddings": False}, std=0.08),
}
CASES |= {
    "roformer": Case("RoFormer", {**_DECODER, **UNEVEN, "embedding_size": 40}, std=0.08),
    "rembert": Case(
        "RemBert", {**_DECODER, "input_embedding_size": 40, "output_embedding_size": 72, "tie_word_embeddings": False}
    ),
    "big-bird": Case("BigBird", {**_DECODER, **UNEVEN, "use_bias": False, "rescale_embeddings": True}, std=0.08),
    "bart-decoder": Case("Bart", {**_ALONE, "hidden_size": 72, "d_model": 72, "decoder_attention_heads": 9}, std=0.08),
    "mbart-decoder": Case("MBart", {**_ALONE, "scale_embedding": True, "tie_word_embeddings": False}),
    "pegasus-decoder": Case("Pegasus", {**_ALONE, "activation_function": "relu"}),
    "blenderbot-small-decoder": Case(
        "BlenderbotSmall", {**_ALONE, "scale_embedding": True, "tie_word_embeddings": False}
    ),
    "bigbird-pegasus-decoder": Case("BigBirdPegasus", {**_ALONE, "decoder_ffn_dim": 110, "use_bias": False}),
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
    "GPTNeoXForCausalLM": ({}, 20_554_567_680),
    "FalconForCausalLM": ({}, 6_921_720_704),
    "OPTForCausalLM": (  # opt-350m
        {
            "hidden_size": 1024,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "ffn_dim": 4096,
            "word_embed_proj_dim": 512,
            "max_position_embeddings": 2048,
            "do_layer_norm_before": False,
        },
        331_196_416,
    ),
    "XGLMForCausalLM": ({}, 564_463_616),
    "BioGptForCausalLM": ({"max_position_embeddings": 1024}, 346_763_264),
    "BloomForCausalLM": ({"n_embed": 1024, "n_layer": 24, "num_attention_heads": 16}, 559_214_592),
    "MptForCausalLM": (  # mpt-7b
        {"d_model": 4096, "n_heads": 32, "n_layers": 32, "vocab_size": 50432},
        6_649_286_656,
    ),
    "PhiForCausalLM": (  # phi-2
        {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 32},
        2_779_683_840,
    ),
    "PersimmonForCausalLM": ({}, 9_397_175_296),
    "BertLMHeadModel": ({"is_decoder": True, "max_position_embeddings": 512}, 109_514_298),
    "OpenAIGPTLMHeadModel": ({"n_positions": 512}, 116_534_784),
}
