"""Qwen3-Next and Qwen3.5: Gated DeltaNet in three of four layers, and attention with an output gate in the others.

The feed-forward is experts beside a shared one, or in some models of Qwen3.5 dense.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from octavo_engine.model.checkpoint.names import QKVLayout, TensorNames
from octavo_engine.model.families import delta_net, reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.families.multimodal import STORED_NAMES
from octavo_engine.model.families.qwen_layers import NAMES, experts, mixers, with_gates
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import FeedForward, LayerSpec, ModelSpec

_LINEAR = "model.layers.{layer}.linear_attn"
_FUSED: dict[str, Any] = {
    **dict.fromkeys(("delta_query", "delta_key", "delta_value", "delta_gate"), f"{_LINEAR}.in_proj_qkvz"),
    **dict.fromkeys(("delta_strength", "delta_decay"), f"{_LINEAR}.in_proj_ba"),
}
"""Qwen3-Next's names: two tensors hold all projections, for one group of heads after another."""


def _model(fields: Fields, architecture: str, feed_forwards: list[FeedForward], names: TensorNames) -> ModelSpec:
    norm = reading.rms_norm(fields, weight_offset=1.0)
    kinds = delta_net.attends(fields, delta_net.last_of_each_interval(fields))
    layers = tuple(
        LayerSpec(mixer=mixer, feed_forward=feed_forward, norms=reading.norms_before(norm))
        for mixer, feed_forward in zip(mixers(fields, norm, kinds), feed_forwards, strict=True)
    )
    names = with_gates(fields, names)
    return reading.model(fields, architecture, layers, norm=norm, names=names, stored_names=STORED_NAMES)


def _read_next(fields: Fields) -> ModelSpec:
    step, dense = fields.integer("decoder_sparse_step", 1, 4096), frozenset(fields.integers("mlp_only_layers"))
    moe = experts(fields, renormalize=fields.boolean("norm_topk_prob", True))
    feed_forwards = [
        reading.mlp(fields) if layer in dense or (layer + 1) % step else moe
        for layer in range(reading.num_layers(fields))
    ]
    layout = QKVLayout(fields.integer("linear_num_key_heads", 1, 1 << 12), (0, 1, 2, 3, 4, 5))
    names = replace(NAMES, **_FUSED, delta_layout=layout)
    return _model(fields, QWEN3_NEXT.architecture, feed_forwards, names)


def _read_dense(fields: Fields) -> ModelSpec:
    return _model(fields, QWEN3_5.architecture, [reading.mlp(fields)] * reading.num_layers(fields), NAMES)


def _read_moe(fields: Fields) -> ModelSpec:
    moe = experts(fields, renormalize=True)
    return _model(fields, QWEN3_5_MOE.architecture, [moe] * reading.num_layers(fields), NAMES)


_DEFAULTS: dict[str, Any] = {
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.25,
    "max_position_embeddings": 32768,
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "tie_word_embeddings": False,
}
_EXPERTS: dict[str, Any] = {"moe_intermediate_size": 512, "shared_expert_intermediate_size": 512}
QWEN3_NEXT = Family(
    architecture="Qwen3NextForCausalLM",
    model_type="qwen3_next",
    read=_read_next,
    defaults=_DEFAULTS
    | _EXPERTS
    | {"num_experts": 512, "num_experts_per_tok": 10, "decoder_sparse_step": 1, "intermediate_size": 5632},
)
QWEN3_5 = Family(
    architecture="Qwen3_5ForCausalLM",
    model_type="qwen3_5_text",
    read=_read_dense,
    defaults=_DEFAULTS | {"num_key_value_heads": 4, "intermediate_size": 12288},
)
QWEN3_5_MOE = Family(
    architecture="Qwen3_5MoeForCausalLM",
    model_type="qwen3_5_moe_text",
    read=_read_moe,
    defaults=_DEFAULTS | _EXPERTS | {"num_experts": 256, "num_experts_per_tok": 8},
)
