"""Hunyuan-A13B of Tencent: dense HunYuan with experts in every layer, beside a shared one."""

from __future__ import annotations

from dataclasses import replace

from octavo_engine.model.families import mixtures, reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.families.hunyuan import HUNYUAN_NAMES
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import LayerSpec, ModelSpec, QKNormSpec, RouterSpec, SharedExpertSpec

_SHARED = "model.layers.{layer}.mlp.shared_mlp"
_NAMES = replace(
    HUNYUAN_NAMES,
    router="model.layers.{layer}.mlp.gate.wg",
    shared_gate=f"{_SHARED}.gate_proj",
    shared_up=f"{_SHARED}.up_proj",
    shared_down=f"{_SHARED}.down_proj",
)


def _read(fields: Fields) -> ModelSpec:
    norm, bias = reading.rms_norm(fields), fields.boolean("attention_bias", False)
    router = RouterSpec(scores="softmax", renormalize=True, in_float32=True)
    qk_norm, shared = QKNormSpec(norm, after_rope=True), SharedExpertSpec(mlp=reading.mlp(fields))
    layers = tuple(
        LayerSpec(
            mixer=reading.attention(fields, qkv_bias=bias, output_bias=bias, qk_norm=qk_norm),
            feed_forward=mixtures.experts(
                _of_layer(fields, layer), router, top_k="moe_topk", size="intermediate_size", shared=shared
            ),
            norms=reading.norms_before(norm),
        )
        for layer in range(reading.num_layers(fields))
    )
    return reading.model(fields, HUNYUAN_MOE.architecture, layers, norm=norm, names=_NAMES)


def _of_layer(fields: Fields, layer: int) -> Fields:
    """Return `fields` with the layer's own values where a field has a list of one for each layer."""
    values, count = dict(fields.values), reading.num_layers(fields)
    for name in ("num_experts", "moe_topk"):
        value = values.get(name)
        if isinstance(value, list):
            if len(value) != count:
                raise fields.wrong(name, value, f"does not have a value for each of {count} layers")
            values[name] = value[layer]
    return replace(fields, values=values)


HUNYUAN_MOE = Family(
    architecture="HunYuanMoEV1ForCausalLM",
    model_type="hunyuan_v1_moe",
    read=_read,
    defaults={
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 2048,
        "num_experts": 1,
        "moe_topk": 1,
        "eos_token_id": 2,
    },
)
