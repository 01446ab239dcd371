"""Qwen3's dense models (arXiv 2505.09388): Llama's layers, heads of query and key normalised before they are turned."""

from __future__ import annotations

from octavo_engine.model.families.family import Family

QWEN3 = Family(
    architecture="Qwen3ForCausalLM",
    model_type="qwen3",
    gguf_architecture="qwen3",
    defaults={
        "head_dim": 128,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "tie_word_embeddings": False,
    },
    qk_norm=True,
)
