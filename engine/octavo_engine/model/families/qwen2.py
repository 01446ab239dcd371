"""Qwen2 and Qwen2.5 (arXiv 2407.10671): Llama with biases of query, key and value.

Some models have a sliding window in their last layers.
"""

from __future__ import annotations

from dataclasses import replace

from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import LayerSpec, ModelSpec


def _read(fields: Fields) -> ModelSpec:
    norm = reading.rms_norm(fields)
    layers = tuple(
        LayerSpec(
            mixer=reading.attention(fields, qkv_bias=True, window=window),
            feed_forward=reading.mlp(fields),
            norms=reading.norms_before(norm),
        )
        for window in reading.late_windows(fields)
    )
    return reading.model(fields, QWEN2.architecture, layers, norm=norm)


QWEN2 = Family(
    architecture="Qwen2ForCausalLM",
    model_type="qwen2",
    read=_read,
    defaults={
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 32768,
        "max_window_layers": 28,
        "sliding_window": 4096,
        "tie_word_embeddings": False,
    },
)
MIMO: Family = Family(  # Xiaomi's MiMo 7B (arXiv 2505.07608): Qwen2 with layers of multi-token prediction
    architecture="MiMoForCausalLM",
    model_type="mimo",
    read=lambda fields: replace(_read(fields), architecture=MIMO.architecture),
    defaults=QWEN2.defaults,
)
