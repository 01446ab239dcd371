"""OpenAI's gpt-oss (arXiv 2508.10925): experts in MXFP4, attention sinks, windows in every second layer."""

from __future__ import annotations

from octavo_engine.model.families.family import Family

GPT_OSS = Family(
    architecture="GptOssForCausalLM",
    model_type="gpt_oss",
    gguf_architecture="",
    defaults={
        "head_dim": 64,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 150000.0,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
        "attention_bias": True,
        "tie_word_embeddings": False,
        "sliding_window": 128,
        "num_local_experts": 128,
        "num_experts_per_tok": 4,
        "swiglu_alpha": 1.702,
        "swiglu_limit": 7.0,
    },
    experts=True,
    attention_sinks=True,
    sliding_layers=True,
)
