"""K-EXAONE of LG: Llama with QK norm, sliding windows, and DeepSeek V3's experts in all but the first layers. Where
some layers have a window, the others have no RoPE."""

from __future__ import annotations

from dataclasses import replace

from octavo_engine.model.checkpoint.names import TensorNames
from octavo_engine.model.families import mixtures, reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import LayerSpec, ModelSpec, QKNormSpec

_NAMES = TensorNames(
    modules=(("gate.e_score", "e_score"),), correction_bias="model.layers.{layer}.mlp.e_score_correction_bias"
)


def _read(fields: Fields) -> ModelSpec:
    norm, hybrid = reading.rms_norm(fields), fields.has("sliding_window")
    period = fields.integer("sliding_window_pattern", 0, 4096) if hybrid else 0
    shared = mixtures.shared(fields, "num_shared_experts")
    moe = mixtures.experts(fields, mixtures.sigmoid_router(fields), shared=shared)
    feed_forward = mixtures.by_type(fields, moe, fields.integer("first_k_dense_replace", 0, 1 << 16))
    rotating = reading.attention(fields, qk_norm=QKNormSpec(norm))
    layers = tuple(
        LayerSpec(
            mixer=replace(rotating, window=window, rope=None if hybrid and window is None else rotating.rope),
            feed_forward=feed_forward(layer),
            norms=reading.norms_before(norm),
        )
        for layer, window in enumerate(reading.windows(fields, default=lambda i: period > 0 and (i + 1) % period != 0))
    )
    return reading.model(fields, EXAONE_MOE.architecture, layers, norm=norm, names=_NAMES)


EXAONE_MOE = Family(
    architecture="ExaoneMoeForCausalLM",
    model_type="exaone_moe",
    read=_read,
    defaults={
        "num_key_value_heads": 32,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 2048,
        "sliding_window": 4096,
        "sliding_window_pattern": 4,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 1024,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "num_shared_experts": 1,
        "routed_scaling_factor": 2.5,
        "n_group": 1,
        "topk_group": 1,
        "eos_token_id": 53,
    },
    nullable=frozenset({"sliding_window"}),
)
