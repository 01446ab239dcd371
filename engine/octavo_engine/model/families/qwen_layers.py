"""Reads the layers of Qwen3-Next, Qwen3.5 and Qwen4 Exp: gated attention, Gated DeltaNet, and experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from octavo_engine.model.checkpoint.names import QKVLayout, TensorNames
from octavo_engine.model.families import delta_net, mixtures, reading
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import (
    FeedForward,
    Mixer,
    NormSpec,
    OutputGateSpec,
    QKNormSpec,
    RouterSpec,
    SharedExpertSpec,
)

_SHARED = "model.layers.{layer}.mlp.shared_expert"
NAMES = TensorNames(
    shared_gate=f"{_SHARED}.gate_proj", shared_up=f"{_SHARED}.up_proj", shared_down=f"{_SHARED}.down_proj"
)


def mixers(fields: Fields, norm: NormSpec, attends: list[bool], **linear: Any) -> list[Mixer]:
    """Return gated attention where `attends` is true, elsewhere Gated DeltaNet; `linear` are fields of its spec."""
    bias = fields.boolean("attention_bias", False)
    attention = reading.attention(
        fields,
        partial_rotary=True,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=QKNormSpec(norm),
        output_gate=OutputGateSpec(with_query=True),
    )
    delta = delta_net.mixer(fields, norm_eps=norm.eps, **linear)
    return [attention if each else delta for each in attends]


def with_gates(fields: Fields, names: TensorNames) -> TensorNames:
    """Return `names` with the output gate's, whose rows follow those of the query, head by head."""
    layout = QKVLayout(fields.integer("num_attention_heads", 1, 1 << 16))
    return replace(names, qkv_layout=layout, output_gate=names.query)


def experts(fields: Fields, *, renormalize: bool) -> FeedForward:
    """Return the experts of a layer, with a shared expert that is gated."""
    shared = reading.mlp(fields, intermediate_size=reading.intermediate_size(fields, "shared_expert_intermediate_size"))
    router = RouterSpec(scores="softmax", renormalize=renormalize)
    return mixtures.experts(fields, router, shared=SharedExpertSpec(mlp=shared, gated=True))
