"""Reads Gemma 4's experts beside the dense feed-forward, each with norms before and after it."""

from __future__ import annotations

from octavo_engine.model.checkpoint.names import LLAMA_NAMES, TensorNames
from octavo_engine.model.families import reading
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import MLPSpec, MoESpec, NormSpec, RouterSpec, SharedExpertSpec

NAMES = TensorNames(
    before_feed_forward="model.layers.{layer}.pre_feedforward_layernorm",
    router="model.layers.{layer}.router.proj",
    expert_gate="model.layers.{layer}.experts.gate_up_proj",
    expert_up="model.layers.{layer}.experts.gate_up_proj",
    expert_down="model.layers.{layer}.experts.down_proj",
    expert_layout="rows",
    shared_gate=LLAMA_NAMES.gate,
    shared_up=LLAMA_NAMES.up,
    shared_down=LLAMA_NAMES.down,
)


def experts_beside(fields: Fields, mlp: MLPSpec, norm: NormSpec) -> MoESpec:
    """Return a layer's experts, with its dense feed-forward `mlp` as the shared expert."""
    count = reading.num_experts(fields, "num_experts")
    return MoESpec(
        num_experts=count,
        top_k=fields.integer("top_k_experts", 1, count),
        intermediate_size=reading.intermediate_size(fields, "moe_intermediate_size"),
        router=RouterSpec(
            scores="softmax",
            renormalize=True,
            input_norm=norm,
            input_scale=reading.hidden_size(fields) ** -0.5,
            expert_scales=True,
        ),
        shared=SharedExpertSpec(mlp=mlp),
        activation=mlp.activation,
        branch_norm=norm,
    )
