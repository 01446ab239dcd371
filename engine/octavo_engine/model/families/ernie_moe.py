"""ERNIE 4.5's mixtures of experts, of Baidu: dense ERNIE 4.5 with experts in all but the first layers. The router adds
a correction bias to its softmax scores for the choice alone, and divides the chosen scores by their sum, or by
`moe_norm_min` if the sum is smaller."""

from __future__ import annotations

from octavo_engine.model.checkpoint.names import TensorNames
from octavo_engine.model.families import mixtures, reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import HeadSpec, ModelSpec, MoESpec, RouterSpec

_NAMES = TensorNames(
    modules=((".mlp.gate.moe_statics.", ".mlp.moe_statics."),),
    correction_bias="model.layers.{layer}.mlp.moe_statics.e_score_correction_bias",
)


def ernie_experts(fields: Fields) -> MoESpec:
    """Return the experts of a layer, with their router and the shared ones."""
    bias = fields.boolean("use_bias", False)
    router = RouterSpec(
        scores="softmax",
        correction_bias=True,
        renormalize=True,
        sum_floor=fields.number("moe_norm_min", 0, 1),
        in_float32=True,
    )
    beside = mixtures.shared(fields, "moe_num_shared_experts", bias=bias, output_bias=bias)
    return mixtures.experts(fields, router, count="moe_num_experts", top_k="moe_k", shared=beside)


def _read(fields: Fields) -> ModelSpec:
    norm, bias, count = reading.rms_norm(fields), fields.boolean("use_bias", False), reading.num_layers(fields)
    moe = ernie_experts(fields)
    first, last = (fields.integer(f"moe_layer_{end}_index", -1, 1 << 16) for end in ("start", "end"))
    last, period = count - 1 if last == -1 else last, fields.integer("moe_layer_interval", 1, 4096)
    dense = reading.mlp(fields, bias=bias, output_bias=bias)
    mixer = reading.interleaved(reading.attention(fields, qkv_bias=bias, output_bias=bias))
    layers = mixtures.layers(
        (mixer,) * count, lambda layer: moe if (layer + 1) % period == 0 and first <= layer <= last else dense, norm
    )
    head = HeadSpec(fields.boolean("tie_word_embeddings", True), bias=bias)
    return reading.model(fields, ERNIE4_5_MOE.architecture, layers, norm=norm, head=head, names=_NAMES)


ERNIE4_5_MOE = Family(
    architecture="Ernie4_5_MoeForCausalLM",
    model_type="ernie4_5_moe",
    read=_read,
    defaults={
        "num_key_value_heads": 4,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "max_position_embeddings": 131072,
        "intermediate_size": 12288,
        "moe_intermediate_size": 1536,
        "moe_k": 6,
        "moe_num_experts": 64,
        "moe_num_shared_experts": 2,
        "moe_layer_start_index": 1,
        "moe_layer_end_index": -1,
        "moe_layer_interval": 1,
        "moe_norm_min": 1e-12,
        "eos_token_id": 2,
    },
)
