"""Flint of Recursive: Qwen3's mixture of experts with attention sinks and sliding windows.

Layers with a window have RoPE; the others see all tokens and have none. The router has sigmoid scores, and a shared
expert stands beside the experts.
"""

from __future__ import annotations

from dataclasses import replace

from octavo_engine.model.checkpoint.names import TensorNames
from octavo_engine.model.families import mixtures, reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import LayerSpec, ModelSpec, QKNormSpec, RouterSpec, SharedExpertSpec

_SHARED = "model.layers.{layer}.mlp.shared_expert"
_NAMES = TensorNames(
    modules=((".sinks", ".softmax_offset"),),
    sinks="model.layers.{layer}.self_attn.softmax_offset",
    shared_gate=f"{_SHARED}.gate_proj",
    shared_up=f"{_SHARED}.up_proj",
    shared_down=f"{_SHARED}.down_proj",
)


def _read(fields: Fields) -> ModelSpec:
    norm, bias = reading.rms_norm(fields), fields.boolean("attention_bias", False)
    router = RouterSpec(scores="sigmoid", renormalize=fields.boolean("norm_topk_prob", True), in_float32=True)
    size = reading.intermediate_size(fields, "shared_expert_intermediate_size")
    beside = SharedExpertSpec(mlp=reading.mlp(fields, intermediate_size=size))
    experts, dense = mixtures.experts(fields, router, shared=beside), reading.mlp(fields)
    only_dense = fields.integers("mlp_only_layers") if "mlp_only_layers" in fields.values else (0, 1)
    step, count = fields.integer("decoder_sparse_step", 1, 4096), reading.num_layers(fields)
    rotating = reading.attention(fields, qkv_bias=bias, output_bias=bias, qk_norm=QKNormSpec(norm), sinks=True)
    windows = reading.windows(fields, default=lambda layer: layer >= 2 and layer % 4 != 1 and layer != count - 1)
    layers = tuple(
        LayerSpec(
            mixer=replace(rotating, window=window, rope=None if window is None else rotating.rope),
            feed_forward=dense if layer in only_dense or (layer + 1) % step else experts,
            norms=reading.norms_before(norm),
        )
        for layer, window in enumerate(windows)
    )
    return reading.model(fields, FLINT.architecture, layers, norm=norm, names=_NAMES)


FLINT = Family(
    architecture="FlintForCausalLM",
    model_type="flint",
    read=_read,
    aliases={"num_local_experts": "num_experts"},
    defaults={
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 49,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 262144,
        "sliding_window": 513,
        "num_experts": 256,
        "num_experts_per_tok": 6,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 1024,
        "decoder_sparse_step": 1,
        "vocab_size": 150144,
    },
)
