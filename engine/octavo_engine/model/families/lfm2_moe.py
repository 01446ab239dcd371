"""LFM2's mixtures of experts, of Liquid AI: LFM2 with experts in all but the first layers."""

from __future__ import annotations

from dataclasses import replace

from octavo_engine.model.families import lfm2, mixtures, reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import LayerSpec, MLPSpec, ModelSpec, RouterSpec

_FEED_FORWARD = "model.layers.{layer}.feed_forward"
_NAMES = replace(
    lfm2.NAMES,
    router=f"{_FEED_FORWARD}.gate",
    correction_bias=f"{_FEED_FORWARD}.expert_bias",
    expert_gate=f"{_FEED_FORWARD}.experts.{{expert}}.w1",
    expert_up=f"{_FEED_FORWARD}.experts.{{expert}}.w3",
    expert_down=f"{_FEED_FORWARD}.experts.{{expert}}.w2",
)


def _read(fields: Fields) -> ModelSpec:
    norm, mixers = lfm2.norm(fields), lfm2.mixers(fields)
    router = RouterSpec(
        scores="sigmoid",
        correction_bias=fields.boolean("use_expert_bias", True),
        renormalize=fields.boolean("norm_topk_prob", True),
        sum_offset=1e-6,
        scale=fields.number("routed_scaling_factor", 1e-6, 1e6),
    )
    experts = mixtures.experts(fields, router)
    dense, first = (
        MLPSpec(intermediate_size=reading.intermediate_size(fields)),
        fields.integer("num_dense_layers", 0, 4096),
    )
    layers = tuple(
        LayerSpec(mixer=mixer, feed_forward=dense if layer < first else experts, norms=reading.norms_before(norm))
        for layer, mixer in enumerate(mixers)
    )
    return reading.model(fields, LFM2_MOE.architecture, layers, norm=norm, names=_NAMES)


LFM2_MOE = Family(
    architecture="Lfm2MoeForCausalLM",
    model_type="lfm2_moe",
    read=_read,
    defaults={
        "hidden_act": "silu",
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 128_000,
        "norm_eps": 1e-5,
        "rope_theta": 1e6,
        "conv_L_cache": 3,
        "num_dense_layers": 2,
        "num_experts": 32,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 1792,
        "routed_scaling_factor": 1.0,
        "tie_word_embeddings": True,
        "eos_token_id": 2,
    },
    aliases={"tie_embedding": "tie_word_embeddings"},
)
