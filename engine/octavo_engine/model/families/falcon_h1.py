"""Falcon-H1 of TII (arXiv 2507.22448): attention and Mamba-2 in parallel in each layer, with their results added.

config.json states multipliers for the inputs and results of both, for keys, embeddings, the feed-forward and logits.
"""

from __future__ import annotations

from octavo_engine.model.families import bamba, reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.families.state_space import STATE_SPACE_DEFAULTS, mamba2
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import GatedNormSpec, HeadSpec, LayerSpec, Mamba2Spec, ModelSpec, ParallelMixersSpec


def _numbers(fields: Fields, name: str, count: int) -> tuple[float, ...]:
    values = fields.values.get(name) or [1.0] * count
    if not isinstance(values, list) or len(values) != count or not all(isinstance(v, int | float) for v in values):
        raise fields.wrong(name, values, f"is not {count} numbers")
    return tuple(map(float, values))


def _mamba(fields: Fields, eps: float) -> Mamba2Spec:
    norm = GatedNormSpec(eps=eps, before_gate=fields.boolean("mamba_norm_before_gate", True))
    gate, x, b, c, steps = _numbers(fields, "ssm_multipliers", 5)
    return mamba2(
        fields,
        fields.integer("mamba_d_ssm", 1, 1 << 22) if fields.has("mamba_d_ssm") else None,
        norm=norm if fields.boolean("mamba_rms_norm", False) else None,
        output_bias=fields.boolean("projectors_bias", False),
        scales=(gate, x, b, c, steps),
    )


def _read(fields: Fields) -> ModelSpec:
    norm, bias = reading.rms_norm(fields), fields.boolean("attention_bias", False)
    mixer = reading.attention(fields, qkv_bias=bias, output_bias=bias)
    scaled = mixer.scale * reading.scale(fields, "key_multiplier")  # a factor of keys is a factor of scores
    mixers = ParallelMixersSpec(
        attention=reading.attention(fields, qkv_bias=bias, output_bias=bias, scale=scaled),
        state_mixer=_mamba(fields, norm.eps),
        input_scales=(reading.scale(fields, "attention_in_multiplier"), reading.scale(fields, "ssm_in_multiplier")),
        output_scales=(reading.scale(fields, "attention_out_multiplier"), reading.scale(fields, "ssm_out_multiplier")),
    )
    gate_scale, output_scale = _numbers(fields, "mlp_multipliers", 2)
    mlp_bias = fields.boolean("mlp_bias", False)
    scales = {"gate_scale": gate_scale, "output_scale": output_scale}
    mlp = reading.mlp(fields, bias=mlp_bias, output_bias=mlp_bias, **scales)
    layer = LayerSpec(mixer=mixers, feed_forward=mlp, norms=reading.norms_before(norm))
    tied = fields.boolean("tie_word_embeddings", False)
    return reading.model(
        fields,
        FALCON_H1.architecture,
        reading.repeated(fields, layer),
        norm=norm,
        embedding_scale=reading.scale(fields, "embedding_multiplier"),
        head=HeadSpec(tied, scale=reading.scale(fields, "lm_head_multiplier")),
        names=bamba.NAMES,
    )


_MULTIPLIERS = ("key", "attention_in", "attention_out", "ssm_in", "ssm_out", "embedding", "lm_head")
FALCON_H1 = Family(
    architecture="FalconH1ForCausalLM",
    model_type="falcon_h1",
    read=_read,
    defaults={
        **STATE_SPACE_DEFAULTS,
        **{f"{name}_multiplier": 1.0 for name in _MULTIPLIERS},
        "hidden_act": "silu",
        "num_key_value_heads": 8,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "mamba_d_ssm": 1024,
        "mamba_n_groups": 1,
        "mamba_d_state": 256,
        "eos_token_id": 2,
    },
    nullable=frozenset({"mamba_d_ssm"}),
)
