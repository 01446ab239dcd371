"""MiniMax M2: Llama with partial RoPE, QK norm over all heads, and experts chosen by corrected sigmoid scores."""

from __future__ import annotations

from dataclasses import replace

from octavo_engine.model.checkpoint.names import TensorNames
from octavo_engine.model.families import mixtures, reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import LayerSpec, ModelSpec, QKNormSpec, RouterSpec

_MOE = "model.layers.{layer}.block_sparse_moe"
_NAMES = TensorNames(
    modules=((".mlp.", ".block_sparse_moe."),),
    router=f"{_MOE}.gate",
    correction_bias=f"{_MOE}.e_score_correction_bias",
    expert_gate=f"{_MOE}.experts.{{expert}}.w1",
    expert_up=f"{_MOE}.experts.{{expert}}.w3",
    expert_down=f"{_MOE}.experts.{{expert}}.w2",
)


def _partly_rotated(fields: Fields) -> Fields:
    """Return `fields` with `partial_rotary_factor` in place of `rotary_dim`, which published files state."""
    if not fields.has("rotary_dim"):
        return fields
    rotated = fields.integer("rotary_dim", 2, 1024) / fields.integer("head_dim", 2, 1024)
    return replace(fields, values={"partial_rotary_factor": rotated, **fields.values})


def _read(fields: Fields) -> ModelSpec:
    norm, router = reading.rms_norm(fields), RouterSpec(scores="sigmoid", correction_bias=True, renormalize=True)
    layer = LayerSpec(
        mixer=reading.attention(_partly_rotated(fields), partial_rotary=True, qk_norm=QKNormSpec(norm, per_head=False)),
        feed_forward=mixtures.experts(fields, router, count="num_local_experts", size="intermediate_size"),
        norms=reading.norms_before(norm),
    )
    return reading.model(fields, MINIMAX_M2.architecture, reading.repeated(fields, layer), norm=norm, names=_NAMES)


MINIMAX_M2 = Family(
    architecture="MiniMaxM2ForCausalLM",
    model_type="minimax_m2",
    read=_read,
    defaults={
        "num_key_value_heads": 8,
        "head_dim": 128,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 5e6,
        "max_position_embeddings": 196608,
        "intermediate_size": 1536,
        "num_experts_per_tok": 8,
        "num_local_experts": 256,
    },
    without_effect=frozenset({"use_qk_norm"}),  # published files state it; query and key are always normalised
)
