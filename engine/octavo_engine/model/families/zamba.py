"""Zamba of Zyphra (arXiv 2405.16712): Mamba in heads. Some layers also have attention and a feed-forward, whose weights
they share, and which read the tokens' embeddings again."""

from __future__ import annotations

import math

from octavo_engine.model.checkpoint.names import StoredNames, TensorNames
from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.families.zamba2 import hybrid_layers
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import (
    HeadSpec,
    LayerNorms,
    LayerSpec,
    MambaHeadsSpec,
    ModelSpec,
    SharedBlockSpec,
)

_BLOCK = "model.layers.{layer}.shared_transf"
_NAMES = TensorNames(
    norm="model.final_layernorm",
    shared_block=_BLOCK,
    block_gate=f"{_BLOCK}.feed_forward.gate_proj",
    block_up=f"{_BLOCK}.feed_forward.up_proj",
)


def _read(fields: Fields) -> ModelSpec:
    norm, hybrids = reading.rms_norm(fields), _hybrids(fields)
    tied, mixer = fields.boolean("tie_word_embeddings", True), _mixer(fields)
    layers = tuple(
        LayerSpec(
            mixer=mixer,
            feed_forward=None,
            norms=LayerNorms(before_mixer=norm),
            shared_block=_block(fields, hybrids[0] if tied and layer != hybrids[0] else None)
            if layer in hybrids
            else None,
        )
        for layer in range(reading.num_layers(fields))
    )
    mixers = tuple((f"model.layers.{layer}.mamba_decoder.", f"model.layers.{layer}.") for layer in hybrids)
    copies = tuple(f"model.layers.{layer}.shared_transf." for layer in hybrids[1:]) if tied else ()
    return reading.model(
        fields,
        ZAMBA.architecture,
        layers,
        norm=norm,
        head=HeadSpec(tied),
        names=_NAMES,
        stored_names=StoredNames(renamed=mixers, ignored=copies),
    )


def _block(fields: Fields, weights_of_layer: int | None) -> SharedBlockSpec:
    """Return the shared block. As in transformers, tied embeddings mean that all layers' blocks are one."""
    heads, width = fields.integer("num_attention_heads", 1, 1 << 16), 2 * reading.hidden_size(fields)
    if fields.integer("attention_hidden_size", 1, 1 << 21, default=width) != width:
        name = "attention_hidden_size"
        raise fields.wrong(name, fields.values[name], f"is not supported, only twice hidden_size: {width}")
    head_dim = fields.integer("attention_head_dim", 2, 1024, default=width // heads)
    attention = reading.attention(
        fields.without("head_dim").with_defaults(head_dim=head_dim), scale=(head_dim / 2) ** -0.5, rope=None
    )
    norm = reading.rms_norm(fields)
    return SharedBlockSpec(attention=attention, mlp=reading.mlp(fields), norm=norm, weights_of_layer=weights_of_layer)


def _mixer(fields: Fields) -> MambaHeadsSpec:
    hidden, heads = reading.hidden_size(fields), fields.integer("n_mamba_heads", 1, 1 << 16)
    channels = fields.integer("mamba_expand", 1, 64) * hidden
    if channels % heads:
        raise fields.wrong("n_mamba_heads", heads, f"does not divide the inner size {channels}")
    automatic = fields.values.get("mamba_dt_rank") == "auto"
    return MambaHeadsSpec(
        num_heads=heads,
        head_dim=channels // heads,
        state=fields.integer("mamba_d_state", 1, 1 << 12),
        width=fields.integer("mamba_d_conv", 2, 64),
        step_rank=math.ceil(hidden / 16) if automatic else fields.integer("mamba_dt_rank", 1, 1 << 16),
        activation=reading.activation(fields, "hidden_mamba_act"),
        conv_bias=fields.boolean("mamba_conv_bias", True),
        bias=fields.boolean("mamba_proj_bias", False),
    )


def _hybrids(fields: Fields) -> list[int]:
    """Return the layers with the shared block: the third, then one of each `attn_layer_period`."""
    period, offset = fields.integer("attn_layer_period", 1, 4096), fields.integer("attn_layer_offset", 0, 4095)
    return hybrid_layers(fields, lambda layer: layer == 2 or (layer > 2 and (layer - 3) % period == offset))


ZAMBA = Family(
    architecture="ZambaForCausalLM",
    model_type="zamba",
    read=_read,
    defaults={
        "vocab_size": 32000,
        "hidden_size": 3712,
        "intermediate_size": 14848,
        "num_hidden_layers": 76,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "n_mamba_heads": 2,
        "hidden_act": "gelu",
        "hidden_mamba_act": "silu",
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 4096,
        "attn_layer_period": 6,
        "attn_layer_offset": 4,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_dt_rank": "auto",
        "eos_token_id": 2,
    },
)
