"""Zamba2 of Zyphra (arXiv 2411.15242): Mamba-2, and before it in some layers one of a few shared blocks.

A block is attention and a feed-forward. Layers use the blocks in turn, each with low-rank weights of its own beside the
shared ones (`adapter_rank`). As in transformers, blocks are shared only where embeddings are tied.
"""

from __future__ import annotations

from collections.abc import Callable

from octavo_engine.model.families import reading, zamba2_names
from octavo_engine.model.families.family import Family
from octavo_engine.model.families.rope import rope
from octavo_engine.model.families.state_space import STATE_SPACE_DEFAULTS, least_step, mamba2
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import (
    AttentionSpec,
    GatedNormSpec,
    HeadSpec,
    LayerNorms,
    LayerSpec,
    ModelSpec,
    SharedBlockSpec,
)

_HYBRIDS = (*range(6, 43, 6), 47, 51)
"""The layers with a shared block in a model that does not state them."""


def _read(fields: Fields) -> ModelSpec:
    norm, hybrids, turns = (
        reading.rms_norm(fields),
        hybrid_layers(fields, _HYBRIDS.__contains__),
        fields.integer("num_mem_blocks", 1, 4096),
    )
    bias = fields.boolean("add_bias_linear", False)
    mixer = mamba2(
        fields,
        int(fields.number("mamba_expand", 1, 64) * reading.hidden_size(fields)),
        activation="silu",
        norm=GatedNormSpec(eps=1e-5),
        bias=bias,
        output_bias=bias,
        least_step=least_step(fields),
    )
    attention, rank = _attention(fields), fields.integer("adapter_rank", 1, 1 << 16)
    mlp = reading.mlp(fields, bias=bias, output_bias=bias, adapter_rank=rank)
    tied = fields.boolean("tie_word_embeddings", True)
    sources = {
        layer: hybrids[index % turns] if tied and index >= turns else None for index, layer in enumerate(hybrids)
    }
    layers = tuple(
        LayerSpec(
            mixer=mixer,
            feed_forward=None,
            norms=LayerNorms(before_mixer=norm),
            shared_block=None
            if layer not in sources
            else SharedBlockSpec(attention=attention, mlp=mlp, norm=norm, weights_of_layer=sources[layer]),
        )
        for layer in range(reading.num_layers(fields))
    )
    head, stored = HeadSpec(tied), zamba2_names.stored_names(sources)
    return reading.model(
        fields, ZAMBA2.architecture, layers, norm=norm, head=head, names=zamba2_names.NAMES, stored_names=stored
    )


def _attention(fields: Fields) -> AttentionSpec:
    """Return the attention over the residual stream and the tokens' embeddings, concatenated."""
    heads, hidden = fields.integer("num_attention_heads", 1, 1 << 16), reading.hidden_size(fields)
    head_dim, rotates = 2 * hidden // heads, fields.boolean("use_mem_rope", False)
    adapted = fields.boolean("use_shared_attention_adapter", False)
    return reading.attention(
        fields.without("head_dim").with_defaults(head_dim=head_dim),
        scale=(head_dim / 2) ** -0.5,
        rope=rope(fields, reading.max_position(fields), head_dim) if rotates else None,
        adapter_rank=fields.integer("adapter_rank", 1, 1 << 16) if adapted else None,
    )


def hybrid_layers(fields: Fields, default: Callable[[int], bool]) -> list[int]:
    """Return the layers with a shared block; by `default` where no field names them."""
    kinds, count = fields.values.get("layers_block_type"), reading.num_layers(fields)
    known = {"hybrid", "mamba", "linear_attention"}
    if kinds is None:
        return [layer for layer in range(count) if default(layer)]
    if not isinstance(kinds, list) or len(kinds) != count or set(map(str, kinds)) - known:
        raise fields.wrong("layers_block_type", kinds, f"is not {count} times mamba, linear_attention or hybrid")
    hybrids = [layer for layer, kind in enumerate(kinds) if kind == "hybrid"]
    if fields.values.get("hybrid_layer_ids", hybrids) != hybrids:
        raise fields.wrong("hybrid_layer_ids", fields.values["hybrid_layer_ids"], f"is not {hybrids}")
    return hybrids


ZAMBA2 = Family(
    architecture="Zamba2ForCausalLM",
    model_type="zamba2",
    read=_read,
    aliases={"mamba_ngroups": "mamba_n_groups", "n_mamba_heads": "mamba_n_heads"},
    defaults={
        **STATE_SPACE_DEFAULTS,
        "hidden_act": "gelu",
        "mamba_n_heads": 8,
        "mamba_n_groups": 1,
        "mamba_d_state": 64,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "adapter_rank": 128,
        "num_mem_blocks": 1,
        "max_position_embeddings": 4096,
        "eos_token_id": 2,
    },
)
