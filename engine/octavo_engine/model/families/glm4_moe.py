"""GLM-4.5, Solar Open and dots.llm1: Llama's attention with DeepSeek V3's experts."""

from __future__ import annotations

from typing import Any

from octavo_engine.model.families import mixtures, reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import AttentionSpec, ModelSpec, QKNormSpec


def _model(fields: Fields, architecture: str, mixers: tuple[AttentionSpec, ...]) -> ModelSpec:
    norm = reading.rms_norm(fields)
    feed_forward = mixtures.after_dense(fields, mixtures.deepseek_experts(fields))
    return reading.model(fields, architecture, mixtures.layers(mixers, feed_forward, norm), norm=norm)


def _read(fields: Fields, architecture: str) -> ModelSpec:
    """Return the spec of GLM-4.5 (arXiv 2508.06471), or of Solar Open, which has no QK norm and no dense layers."""
    bias = fields.boolean("attention_bias", False)
    qk_norm = QKNormSpec(reading.rms_norm(fields)) if fields.boolean("use_qk_norm", False) else None
    mixer = reading.attention(fields, partial_rotary=True, qkv_bias=bias, qk_norm=qk_norm)
    return _model(fields, architecture, (mixer,) * reading.num_layers(fields))


def _read_dots(fields: Fields) -> ModelSpec:
    """Return the spec of dots.llm1 (arXiv 2506.05767): QK norm, and in some models windows in the last layers."""
    values: dict[str, Any] = dict.fromkeys(("qkv_bias", "output_bias"), fields.boolean("attention_bias", False))
    qk_norm, first = QKNormSpec(reading.rms_norm(fields)), fields.integer("max_window_layers", 0, 1 << 16)
    windows = reading.windows(fields, default=lambda layer: fields.has("sliding_window") and layer >= first)
    mixers = tuple(reading.attention(fields, qk_norm=qk_norm, window=window, **values) for window in windows)
    return _model(fields, DOTS1.architecture, mixers)


_DEFAULTS = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 131072,
    "num_key_value_heads": 8,
    "num_experts_per_tok": 8,
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "routed_scaling_factor": 1.0,
    "n_group": 1,
    "topk_group": 1,
}
GLM4_MOE: Family = Family(
    architecture="Glm4MoeForCausalLM",
    model_type="glm4_moe",
    read=lambda fields: _read(fields, GLM4_MOE.architecture),
    defaults={
        **_DEFAULTS,
        "partial_rotary_factor": 0.5,
        "intermediate_size": 10944,
        "moe_intermediate_size": 1408,
        "first_k_dense_replace": 1,
    },
)
SOLAR_OPEN: Family = Family(
    architecture="SolarOpenForCausalLM",
    model_type="solar_open",
    read=lambda fields: _read(fields, SOLAR_OPEN.architecture),
    defaults={
        **_DEFAULTS,
        "head_dim": 128,
        "rope_theta": 1e6,
        "moe_intermediate_size": 1280,
        "first_k_dense_replace": 0,
        "use_qk_norm": False,
    },
)
DOTS1 = Family(
    architecture="Dots1ForCausalLM",
    model_type="dots1",
    read=_read_dots,
    defaults={
        **_DEFAULTS,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 2048,
        "num_key_value_heads": 32,
        "intermediate_size": 10944,
        "moe_intermediate_size": 1408,
        "first_k_dense_replace": 0,
        "norm_topk_prob": False,
        "sliding_window": 4096,
        "max_window_layers": 62,
    },
    nullable=frozenset({"sliding_window"}),
)
