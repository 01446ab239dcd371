"""A.X K2 of SK Telecom: DeepSeek V3.2 with gated norms and gated attention.

A gated norm multiplies its result with the sigmoid of two small projections of it (`gated_norm_rank`). The norm before
a dense feed-forward is a plain one. One projection makes the queries and the gates of the heads' results.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from octavo_engine.model.checkpoint.names import TensorNames
from octavo_engine.model.families import sparse_index
from octavo_engine.model.families.family import Family
from octavo_engine.model.families.moe_layer_freq import with_mlp_layer_types
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import LatentAttentionSpec, LayerNorms, LayerSpec, ModelSpec, MoESpec, NormSpec

_NAMES = TensorNames(modules=(("q_gate_proj", "q_b_proj"), ("mlp.fc1", "W_down"), ("mlp.fc2", "W_up")))


def _read(fields: Fields) -> ModelSpec:
    spec = sparse_index.read(with_mlp_layer_types(fields), AXK2.architecture)
    rank = fields.integer("gated_norm_rank", 1, 1 << 16)
    return replace(spec, layers=tuple(_gated(layer, rank) for layer in spec.layers), names=_NAMES)


def _gated(layer: LayerSpec, rank: int) -> LayerSpec:
    plain, mixer = cast("NormSpec", layer.norms.before_mixer), cast("LatentAttentionSpec", layer.mixer)
    gated, part = replace(plain, gate_rank=rank), layer.feed_forward
    norms = LayerNorms(before_mixer=gated, before_feed_forward=gated if isinstance(part, MoESpec) else plain)
    if isinstance(part, MoESpec) and part.router.groups is not None:
        part = replace(part, router=replace(part.router, groups=replace(part.router.groups, dropped=0.0)))
    return replace(layer, mixer=replace(mixer, query_gate=True), feed_forward=part, norms=norms)


AXK2 = Family(
    architecture="AXK2ForCausalLM",
    model_type="axk2",
    read=_read,
    defaults={
        **sparse_index.DEFAULTS,
        "max_position_embeddings": 131072,
        "intermediate_size": 5120,
        "moe_intermediate_size": 512,
        "n_routed_experts": 128,
        "kv_lora_rank": 128,
        "q_lora_rank": 384,
        "qk_rope_head_dim": 32,
        "qk_nope_head_dim": 64,
        "v_head_dim": 64,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "gated_norm_rank": 16,
        "index_n_heads": 16,
        "eos_token_id": 163691,
    },
)
