"""Reads the mixers of GLM-5.3: Kimi Delta Attention, and latent attention to pools of tokens that an indexer chooses.

Errors are ModelLoadError.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from octavo_engine.model.families import reading, sparse_index
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import KimiDeltaAttentionSpec, LatentAttentionSpec, LayerSpec, TokenIndexSpec

_LINEAR = {
    "linear_head_dim": "head_dim",
    "linear_num_heads": "num_heads",
    "linear_conv_kernel_dim": "short_conv_kernel_size",
    "linear_lower_bound": "gate_lower_bound",
}
"""Fields, with their names in `linear_attn_config`."""
LOWER_BOUND = -5.0
"""The least logarithm of a decay, unless a file has another."""


def linear_attention(fields: Fields) -> KimiDeltaAttentionSpec:
    """Read Kimi Delta Attention; `linear_attn_config`, as published files have it, takes precedence."""
    own = fields.mapping("linear_attn_config") or Fields(fields.origin, {})
    given = {name: own.values[there] for name, there in _LINEAR.items() if there in own.values}
    values = replace(fields, values={**fields.values, **given})
    bound = values.number("linear_lower_bound", -1e3, 0) if values.has("linear_lower_bound") else None
    if bound is None and own.values and own.boolean("safe_gate", True):
        bound = LOWER_BOUND
    return KimiDeltaAttentionSpec(
        num_heads=values.integer("linear_num_heads", 1, 1 << 12),
        head_dim=values.integer("linear_head_dim", 1, 1 << 12),
        width=values.integer("linear_conv_kernel_dim", 2, 64),
        activation=reading.activation(fields),
        norm_eps=fields.number("rms_norm_eps", 0, 1),
        lower_bound=bound,
    )


def latent_attentions(fields: Fields, full: list[bool]) -> list[LatentAttentionSpec | None]:
    """Return the latent attention of each layer, None for the others."""
    kinds, attention = sparse_index.index_kinds(fields), _attention(fields)
    layers: list[LatentAttentionSpec | None] = []
    for layer, attended in enumerate(full):
        of_layer = layer - 1 if kinds[layer] == "shared" else None
        if attended and of_layer is not None and (layer == 0 or not full[layer - 1] or kinds[layer - 1] == "shared"):
            raise fields.wrong("indexer_types", kinds, f"is not supported: layer {layer - 1} has no choice to share")
        index = replace(_index(fields), of_layer=of_layer)
        layers.append(replace(attention, index=index) if attended else None)
    return layers


def _attention(fields: Fields) -> LatentAttentionSpec:
    if rotated := fields.integer("qk_rope_head_dim", 0, 1024):
        raise fields.wrong("qk_rope_head_dim", rotated, "is not supported, only 0")
    size = fields.integer("qk_nope_head_dim", 1, 1024)
    return LatentAttentionSpec(
        num_heads=fields.integer("num_attention_heads", 1, 1 << 12),
        query_rank=fields.integer("q_lora_rank", 1, 1 << 16),
        latent=fields.integer("kv_lora_rank", 1, 1 << 16),
        plain_dim=size,
        rotary_dim=0,
        value_dim=fields.integer("v_head_dim", 1, 1024),
        scale=size**-0.5,
        rope=None,
        norm=reading.rms_norm(fields),
        bias=fields.boolean("attention_bias", False),
    )


def _index(fields: Fields) -> TokenIndexSpec:
    pool = fields.integer("index_kpool", 1, 1 << 16)
    if not fields.boolean("index_kpool_always_select_tail", True):
        raise fields.wrong("index_kpool_always_select_tail", False, "is not supported, only true")
    index = sparse_index.token_index(fields, 1, pool=pool)
    if index.kept % pool:
        raise fields.wrong("index_topk", index.kept, f"is not a multiple of index_kpool {pool}")
    return index


def unread_indexers(layers: Sequence[LayerSpec]) -> tuple[str, ...]:
    """Return the beginnings of the names of indexers' tensors that make no difference.

    Those are all of a layer that has an earlier layer's choice, and the weights of means where a pool is one token.
    """
    names: list[str] = []
    for layer, each in enumerate(layers):
        if isinstance(each.mixer, LatentAttentionSpec) and (index := each.mixer.index) is not None:
            name = f"model.layers.{layer}.self_attn.indexer."
            names += [name] * (index.of_layer is not None) + [f"{name}index_kpool_compress_"] * (index.pool == 1)
    return tuple(names)
