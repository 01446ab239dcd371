"""Nemotron-H of NVIDIA (arXiv 2504.03624): each layer is Mamba-2, attention, a feed-forward or experts alone.

Attention has no RoPE, and feed-forwards have squared ReLU and no gate.
"""

from __future__ import annotations

from dataclasses import replace

from octavo_engine.model.families import mixtures, reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.families.nemotron_h_names import NAMES, STORED_NAMES
from octavo_engine.model.families.state_space import STATE_SPACE_ALIASES, STATE_SPACE_DEFAULTS, least_step, mamba2
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import LayerNorms, LayerSpec, Mamba2Spec, MLPSpec, ModelSpec, MoESpec, SharedExpertSpec

_KINDS = {"M": "linear_attention", "E": "moe", "*": "full_attention", "-": "mlp"}


def _kinds(fields: Fields) -> list[str]:
    kinds = fields.values.get("layers_block_type")
    if kinds is None:
        kinds = list(fields.text("hybrid_override_pattern", default="ME*-"))
    known = {**_KINDS, **{kind: kind for kind in _KINDS.values()}, "mamba": _KINDS["M"], "attention": _KINDS["*"]}
    if not isinstance(kinds, list) or not 0 < len(kinds) <= 4096 or set(map(str, kinds)) - set(known):
        raise fields.wrong("layers_block_type", kinds, f"is not a list of {', '.join(_KINDS.values())}")
    return [known[kind] for kind in kinds]


def _mlp(fields: Fields, name: str = "intermediate_size") -> MLPSpec:
    bias = fields.boolean("mlp_bias", False)
    size, activation = reading.intermediate_size(fields, name), reading.activation(fields, "mlp_hidden_act")
    return MLPSpec(intermediate_size=size, activation=activation, gated=False, bias=bias, output_bias=bias)


def _experts(fields: Fields) -> MoESpec:
    shared = _mlp(fields, "moe_shared_expert_intermediate_size")
    return mixtures.experts(
        fields,
        mixtures.sigmoid_router(fields),
        count="n_routed_experts",
        shared=SharedExpertSpec(mlp=shared),
        activation=shared.activation,
        gated=False,
        latent=fields.integer("moe_latent_size", 1, 1 << 20) if fields.has("moe_latent_size") else None,
        latent_bias=shared.bias,
    )


def _layer(kind: str, fields: Fields) -> LayerSpec:
    norm = reading.rms_norm(fields)
    if kind in ("mlp", "moe"):
        feed_forward = _mlp(fields) if kind == "mlp" else _experts(fields)
        return LayerSpec(mixer=None, feed_forward=feed_forward, norms=LayerNorms(before_feed_forward=norm))
    mixer = _mamba(fields) if kind == "linear_attention" else reading.attention(fields, rope=None)
    return LayerSpec(mixer=mixer, feed_forward=None, norms=LayerNorms(before_mixer=norm))


def _mamba(fields: Fields) -> Mamba2Spec:
    inner = fields.integer("mamba_n_heads", 1, 1 << 16) * fields.integer("mamba_d_head", 1, 1 << 16)
    activation = reading.activation(fields, "mamba_hidden_act")
    return mamba2(fields, inner, activation=activation, least_step=least_step(fields))


def _read(fields: Fields) -> ModelSpec:
    kinds = _kinds(fields)
    fields = replace(fields, values={**fields.values, "num_hidden_layers": len(kinds), "hidden_act": "silu"})
    different = {kind: _layer(kind, fields) for kind in dict.fromkeys(kinds)}
    layers, norm = tuple(different[kind] for kind in kinds), reading.rms_norm(fields)
    return reading.model(fields, NEMOTRON_H.architecture, layers, norm=norm, names=NAMES, stored_names=STORED_NAMES)


NEMOTRON_H = Family(
    architecture="NemotronHForCausalLM",
    model_type="nemotron_h",
    read=_read,
    defaults={
        **STATE_SPACE_DEFAULTS,
        **dict.fromkeys(("moe_intermediate_size", "moe_shared_expert_intermediate_size"), 7688),
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "mlp_hidden_act": "relu2",
        "mamba_hidden_act": "silu",
        "mamba_d_head": 64,
        "mamba_n_groups": 8,
        "mamba_d_state": 128,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        **dict.fromkeys(("n_group", "topk_group", "routed_scaling_factor"), 1),
        "eos_token_id": 2,
    },
    aliases={
        **STATE_SPACE_ALIASES,
        "mamba_dt_min": "time_step_min",
        "layer_types": "layers_block_type",
    },
)
