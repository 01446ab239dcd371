"""Mixtral (arXiv 2401.04088): Mistral with a mixture of experts in every layer."""

from __future__ import annotations

from octavo_engine.model.checkpoint.names import TensorNames
from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import LayerSpec, ModelSpec, MoESpec, RouterSpec

_MOE = "model.layers.{layer}.block_sparse_moe"
MIXTRAL_NAMES = TensorNames(
    modules=((".mlp.router", ".block_sparse_moe.gate"), (".mlp.", ".block_sparse_moe.")),
    router=f"{_MOE}.gate",
    expert_gate=f"{_MOE}.experts.{{expert}}.w1",
    expert_up=f"{_MOE}.experts.{{expert}}.w3",
    expert_down=f"{_MOE}.experts.{{expert}}.w2",
)


def _read(fields: Fields) -> ModelSpec:
    norm, experts = reading.rms_norm(fields), reading.num_experts(fields, "num_local_experts")
    layer = LayerSpec(
        mixer=reading.attention(fields, window=reading.window(fields)),
        feed_forward=MoESpec(
            num_experts=experts,
            top_k=fields.integer("num_experts_per_tok", 1, experts),
            intermediate_size=reading.intermediate_size(fields),
            router=RouterSpec(scores="softmax", renormalize=True),
            activation=reading.activation(fields),
        ),
        norms=reading.norms_before(norm),
    )
    return reading.model(fields, MIXTRAL.architecture, reading.repeated(fields, layer), norm=norm, names=MIXTRAL_NAMES)


MIXTRAL = Family(
    architecture="MixtralForCausalLM",
    model_type="mixtral",
    read=_read,
    defaults={
        "num_key_value_heads": 8,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        "max_position_embeddings": 131072,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "tie_word_embeddings": False,
        "eos_token_id": 2,
    },
)
