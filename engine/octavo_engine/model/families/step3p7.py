"""Step 3.7 of StepFun: Llama with QK norm, sliding windows, output gates and experts.

Layers with a window have their own number of heads and RoPE. The router has sigmoid scores and a correction bias. In
some layers the activated gate and the up projection are cut off at a limit (`swiglu_limits`).
"""

from __future__ import annotations

from dataclasses import replace

from octavo_engine.model.checkpoint.names import TensorNames
from octavo_engine.model.families import mixtures, reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.families.per_layer import of_layer
from octavo_engine.model.families.step3p7_fields import ALIASES, as_saved, limits
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import (
    AttentionSpec,
    FeedForward,
    LayerSpec,
    ModelSpec,
    NormSpec,
    OutputGateSpec,
    QKNormSpec,
    RouterSpec,
    SharedExpertSpec,
)

_LAYER = "model.layers.{layer}"
_NAMES = TensorNames(
    modules=((".mlp.experts", ".moe"), (".mlp.shared_experts.", ".share_expert.")),
    output_gate=f"{_LAYER}.self_attn.g_proj",
    router=f"{_LAYER}.moe.gate",
    correction_bias=f"{_LAYER}.moe.router_bias",
    expert_gate=f"{_LAYER}.moe.gate_proj.weight",
    expert_up=f"{_LAYER}.moe.up_proj.weight",
    expert_down=f"{_LAYER}.moe.down_proj.weight",
    expert_layout="apart",
    shared_gate=f"{_LAYER}.share_expert.gate_proj",
    shared_up=f"{_LAYER}.share_expert.up_proj",
    shared_down=f"{_LAYER}.share_expert.down_proj",
)


def _read(fields: Fields) -> ModelSpec:
    fields = as_saved(fields)
    reading.refuse_if_true(fields, "use_bidirectional_attention")
    if fields.values.get("gating", True) not in (True, "per-head"):
        raise fields.wrong("gating", fields.values["gating"], "is not supported, only true and per-head")
    norm = reading.rms_norm(fields, weight_offset=1.0)
    layers = tuple(
        LayerSpec(mixer=_mixer(fields, norm, layer, window), feed_forward=part, norms=reading.norms_before(norm))
        for layer, (window, part) in enumerate(
            zip(reading.windows(fields, default=lambda _: False), _feed_forwards(fields), strict=True)
        )
    )
    return reading.model(fields, STEP3P7.architecture, layers, norm=norm, names=_NAMES)


def _mixer(fields: Fields, norm: NormSpec, layer: int, window: int | None) -> AttentionSpec:
    bias, size = fields.boolean("attention_bias", False), fields.integer("head_dim", 2, 1024)
    return reading.attention(
        of_layer(fields, layer, {"num_attention_heads"}),
        partial_rotary=True,
        layer_type=reading.layer_type(window),
        scale=fields.number("query_pre_attn_scalar", 1e-6, 1e6, default=size) ** -0.5,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=QKNormSpec(norm),
        output_gate=OutputGateSpec(per_head=True),
        window=window,
    )


def _feed_forwards(fields: Fields) -> list[FeedForward]:
    bias, width = fields.boolean("mlp_bias", False), reading.intermediate_size(fields, "share_expert_dim")
    scale = reading.scale(fields, "moe_router_scaling_factor")
    router = RouterSpec(scores="sigmoid", correction_bias=True, renormalize=True, scale=scale)
    parts: list[FeedForward] = []
    both_limits = zip(limits(fields, "swiglu_limits"), limits(fields, "swiglu_limits_shared"), strict=True)
    for kind, (limit, shared_limit) in zip(mixtures.layer_types(fields, 3), both_limits, strict=True):
        dense = reading.mlp(fields, bias=bias, output_bias=bias, activated_limit=shared_limit)
        if kind == "dense":
            parts.append(dense)
            continue
        shared = SharedExpertSpec(
            mlp=reading.mlp(fields, intermediate_size=width, bias=bias, output_bias=bias, activated_limit=shared_limit)
        )
        parts.append(mixtures.experts(fields, router, count="n_routed_experts", shared=shared, activated_limit=limit))
    return parts


STEP3P7 = Family(
    architecture="Step3p7TextForCausalLM",
    model_type="step3p5",
    read=_read,
    aliases=ALIASES,
    defaults={
        "num_key_value_heads": 8,
        "head_dim": 128,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 128000,
        "intermediate_size": 11264,
        "n_routed_experts": 288,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 1280,
        "share_expert_dim": 1280,
        "moe_router_scaling_factor": 1.0,
    },
)
STEP3P5 = replace(STEP3P7, architecture="Step3p5ForCausalLM")
"""Step 3.5 Flash, of the same layers; transformers finds its class by `model_type`."""
