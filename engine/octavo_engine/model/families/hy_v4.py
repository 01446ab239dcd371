"""Hy4 of Tencent: DeepSeek V3.2 with attention sinks, output gates and hyper-connections.

With hyper-connections the residual stream has several vectors for each token. Attention and feed-forward read a
weighted sum of them, and their result is added to each, times another weight. The language model of Hy4 for images
rotates neighbouring dimensions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from octavo_engine.model.families import reading, sparse_index
from octavo_engine.model.families.family import Family
from octavo_engine.model.families.hy_v4_names import ENDINGS, NAMES
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import (
    LatentAttentionSpec,
    LayerSpec,
    ModelSpec,
    MoESpec,
    OutputGateSpec,
    WeightedConnectionsSpec,
)


def _read(fields: Fields, architecture: str, *, interleaved: bool) -> ModelSpec:
    fields = replace(fields, values={**fields.values, "rope_interleave": interleaved, "first_k_dense_replace": 1})
    eps = fields.number("rms_norm_eps", 0, 1)
    kinds = sparse_index.index_kinds(fields, every=4)
    spec = sparse_index.read(fields, architecture, kinds, eps=eps, rotates_last=True, interleaved=interleaved)
    connections = WeightedConnectionsSpec(
        count=fields.integer("hc_mult", 1, 64),
        eps=eps,
        weight_offset=fields.number("hc_eps", 0, 1),
        magnitude=fields.number("hc_magnitude", 0, 1e3),
    )
    limit = fields.number("swiglu_limit", 1e-3, 1e6)
    stored = replace(spec.stored_names, renamed=(("model.hc_pre.", "model."),), endings=ENDINGS)
    layers = tuple(_connected(layer, connections, limit) for layer in spec.layers)
    return replace(spec, layers=layers, names=NAMES, stored_names=stored)


def _connected(layer: LayerSpec, connections: WeightedConnectionsSpec, limit: float) -> LayerSpec:
    mixer = replace(cast("LatentAttentionSpec", layer.mixer), output_gate=OutputGateSpec(), sinks=True)
    part = layer.feed_forward
    if isinstance(part, MoESpec):
        part = replace(part, activation="silu", limit=limit, up_offset=0.0)
    return replace(layer, mixer=mixer, feed_forward=part, connections=connections)


def _read_of_images(fields: Fields) -> ModelSpec:
    spec = _read(fields, HY_V4_VL_TEXT.architecture, interleaved=True)
    norm = reading.rms_norm(fields)
    mixers = [replace(cast("LatentAttentionSpec", layer.mixer), norm=norm) for layer in spec.layers]
    pairs = zip(spec.layers, mixers, strict=True)
    return replace(spec, layers=tuple(replace(layer, mixer=mixer) for layer, mixer in pairs))


_DEFAULTS: dict[str, Any] = {
    **sparse_index.DEFAULTS,
    "rms_norm_eps": 1e-5,
    "qk_nope_head_dim": 192,
    "v_head_dim": 256,
    "moe_intermediate_size": 768,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 2.827,
    "hc_mult": 4,
    "hc_magnitude": 2.0,
    "hc_eps": 1e-6,
    "swiglu_limit": 10.0,
    "index_n_heads": 16,
    "eos_token_id": 120025,
}
HY_V4: Family = Family(
    architecture="HYV4ForCausalLM",
    model_type="hy_v4",
    read=lambda fields: _read(fields, HY_V4.architecture, interleaved=False),
    defaults=_DEFAULTS,
)
HY_V4_VL_TEXT = Family(
    architecture="HYV4VLTextForCausalLM",
    model_type="hy_v4_vl_text",
    read=_read_of_images,
    defaults={**_DEFAULTS, "moe_intermediate_size": 2048, "q_lora_rank": 2048, "index_n_heads": 32},
)
