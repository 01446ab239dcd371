"""Granite 4 hybrids of IBM: Granite with Mamba-2 in place of attention in most layers.

Attention has RoPE only if `position_embedding_type` is `rope`. The feed-forward is dense, or experts beside a shared
one.
"""

from __future__ import annotations

from octavo_engine.model.families import granite, granite_moe, reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.families.state_space import STATE_SPACE_DEFAULTS, attending, mamba2
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import FeedForward, ModelSpec


def _feed_forward(fields: Fields) -> FeedForward:
    if fields.integer("num_local_experts", 0, 1 << 16):
        return granite_moe.experts(fields)
    return reading.mlp(fields, intermediate_size=reading.intermediate_size(fields, "shared_intermediate_size"))


def _read(fields: Fields) -> ModelSpec:
    rotates = fields.values.get("position_embedding_type") == "rope"
    attention = granite.mixer(fields) if rotates else granite.mixer(fields, rope=None)
    mamba = mamba2(fields)
    mixers = tuple(attention if attends else mamba for attends in attending(fields, lambda _: False))
    names = granite_moe.NAMES if fields.integer("num_local_experts", 0, 1 << 16) else granite_moe.DENSE_NAMES
    return granite.model(fields, GRANITE_HYBRID.architecture, mixers, _feed_forward(fields), names=names)


GRANITE_HYBRID = Family(
    architecture="GraniteMoeHybridForCausalLM",
    model_type="granitemoehybrid",
    read=_read,
    defaults={
        **granite_moe.DEFAULTS,
        **STATE_SPACE_DEFAULTS,
        "shared_intermediate_size": 1024,
        "mamba_n_groups": 1,
        "mamba_d_state": 256,
    },
    nullable=granite_moe.NULLABLE,
)
