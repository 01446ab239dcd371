"""Qwen1.5's and Qwen2's mixtures of experts (arXiv 2407.10671): Qwen2 with experts beside a shared, gated one."""

from __future__ import annotations

from octavo_engine.model.checkpoint.names import TensorNames
from octavo_engine.model.families import mixtures, reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import LayerSpec, ModelSpec, RouterSpec, SharedExpertSpec

_SHARED = "model.layers.{layer}.mlp.shared_expert"
_NAMES = TensorNames(
    shared_gate=f"{_SHARED}.gate_proj", shared_up=f"{_SHARED}.up_proj", shared_down=f"{_SHARED}.down_proj"
)


def _read(fields: Fields) -> ModelSpec:
    norm = reading.rms_norm(fields)
    shared = reading.mlp(fields, intermediate_size=reading.intermediate_size(fields, "shared_expert_intermediate_size"))
    router = RouterSpec(scores="softmax", renormalize=fields.boolean("norm_topk_prob", False))
    moe = mixtures.experts(fields, router, shared=SharedExpertSpec(mlp=shared, gated=True))
    step, dense = fields.integer("decoder_sparse_step", 1, 4096), frozenset(fields.integers("mlp_only_layers"))
    windowed = fields.integer("max_window_layers", 0, 1 << 16) if fields.boolean("use_sliding_window", False) else 0
    layers = tuple(
        LayerSpec(
            mixer=reading.attention(fields, qkv_bias=fields.boolean("qkv_bias", True), window=window),
            feed_forward=reading.mlp(fields) if layer in dense or (layer + 1) % step else moe,
            norms=reading.norms_before(norm),
        )
        for layer, window in enumerate(reading.windows(fields, default=lambda i: i % 2 == 0 and i < windowed))
    )
    return reading.model(fields, QWEN2_MOE.architecture, layers, norm=norm, names=_NAMES)


QWEN2_MOE = Family(
    architecture="Qwen2MoeForCausalLM",
    model_type="qwen2_moe",
    read=_read,
    defaults={
        "num_key_value_heads": 16,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 32768,
        "sliding_window": 4096,
        "max_window_layers": 28,
        "decoder_sparse_step": 1,
        "intermediate_size": 5632,
        "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632,
        "num_experts_per_tok": 4,
        "num_experts": 60,
    },
)
