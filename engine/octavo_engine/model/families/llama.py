"""Llama (arXiv 2302.13971, 2407.21783) and the many models that share its class, SmolLM2 among them."""

from __future__ import annotations

from octavo_engine.model.families.family import Family

LLAMA = Family(
    architecture="LlamaForCausalLM",
    model_type="llama",
    gguf_architecture="llama",
    defaults={
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "eos_token_id": 2,
    },
    gguf_interleaves_rope=True,
)
