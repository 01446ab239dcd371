"""Dense Qwen3 (arXiv 2505.09388): Llama with QK norm."""

from __future__ import annotations

from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import LayerSpec, ModelSpec, QKNormSpec


def _read(fields: Fields) -> ModelSpec:
    norm, bias = reading.rms_norm(fields), fields.boolean("attention_bias", False)
    layers = tuple(
        LayerSpec(
            mixer=reading.attention(fields, qkv_bias=bias, output_bias=bias, qk_norm=QKNormSpec(norm), window=window),
            feed_forward=reading.mlp(fields),
            norms=reading.norms_before(norm),
        )
        for window in reading.late_windows(fields)
    )
    return reading.model(fields, QWEN3.architecture, layers, norm=norm)


QWEN3 = Family(
    architecture="Qwen3ForCausalLM",
    model_type="qwen3",
    read=_read,
    defaults={
        "head_dim": 128,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "max_position_embeddings": 32768,
        "max_window_layers": 28,
        "sliding_window": 4096,
        "tie_word_embeddings": False,
    },
)
