"""Bamba of IBM: Mamba-2 in most layers and Llama's attention in the others (`attn_layer_indices`).

By default half of each head has RoPE.
"""

from __future__ import annotations

from octavo_engine.model.checkpoint.names import TensorNames
from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.families.state_space import STATE_SPACE_DEFAULTS, attending, mamba2
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import LayerSpec, ModelSpec

_LAYER = "model.layers.{layer}"
NAMES = TensorNames(
    before_feed_forward=f"{_LAYER}.pre_ff_layernorm",
    norm="model.final_layernorm",
    gate=f"{_LAYER}.feed_forward.gate_proj",
    up=f"{_LAYER}.feed_forward.up_proj",
    down=f"{_LAYER}.feed_forward.down_proj",
)


def _read(fields: Fields) -> ModelSpec:
    norm, bias = reading.rms_norm(fields), fields.boolean("attention_bias", False)
    indices = fields.integers("attn_layer_indices")
    attention = reading.attention(fields, partial_rotary=True, qkv_bias=bias, output_bias=bias)
    mamba, mlp_bias = mamba2(fields), fields.boolean("mlp_bias", False)
    mlp = reading.mlp(fields, bias=mlp_bias, output_bias=mlp_bias)
    layers = tuple(
        LayerSpec(mixer=attention if attends else mamba, feed_forward=mlp, norms=reading.norms_before(norm))
        for attends in attending(fields, lambda layer: layer in indices, "layers_block_type")
    )
    return reading.model(fields, BAMBA.architecture, layers, norm=norm, names=NAMES)


BAMBA = Family(
    architecture="BambaForCausalLM",
    model_type="bamba",
    read=_read,
    left_out=frozenset({"partial_rotary_factor"}),  # transformers reads it within rope_parameters alone
    defaults={
        **STATE_SPACE_DEFAULTS,
        "hidden_act": "silu",
        "num_key_value_heads": 8,
        "max_position_embeddings": 262144,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
        "mamba_n_groups": 1,
        "mamba_d_state": 256,
        "eos_token_id": 2,
    },
)
