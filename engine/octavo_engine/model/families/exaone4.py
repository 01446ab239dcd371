"""EXAONE 4 of LG (arXiv 2507.11407): Llama with QK norm, and norms after attention and feed-forward, not before.

In models with a sliding window three of four layers have it; the others see all tokens and have no RoPE.
"""

from __future__ import annotations

from dataclasses import replace

from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import LayerNorms, LayerSpec, ModelSpec, QKNormSpec


def _read(fields: Fields) -> ModelSpec:
    norm, hybrid = reading.rms_norm(fields), fields.has("sliding_window")
    # Published files have "LLLG" in this field, and state `layer_types` too.
    period = fields.integer("sliding_window_pattern", 0, 4096) if hybrid and not fields.has("layer_types") else 0
    rotating = reading.attention(fields, qk_norm=QKNormSpec(norm))
    layers = tuple(
        LayerSpec(
            mixer=replace(rotating, window=window, rope=None if hybrid and window is None else rotating.rope),
            feed_forward=reading.mlp(fields),
            norms=LayerNorms(after_mixer=norm, after_feed_forward=norm),
        )
        for window in reading.windows(fields, default=lambda layer: period > 0 and (layer + 1) % period != 0)
    )
    return reading.model(fields, EXAONE4.architecture, layers, norm=norm)


EXAONE4 = Family(
    architecture="Exaone4ForCausalLM",
    model_type="exaone4",
    read=_read,
    defaults={
        "num_key_value_heads": 32,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 2048,
        "sliding_window": 4096,
        "sliding_window_pattern": 4,
        "eos_token_id": 2,
    },
    nullable=frozenset({"sliding_window"}),
)
