"""Qwen3's mixtures of experts (arXiv 2505.09388): Qwen3 with experts in all layers, or in some."""

from __future__ import annotations

from octavo_engine.model.checkpoint.names import LLAMA_NAMES, TensorNames
from octavo_engine.model.families import mixtures, reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import ModelSpec, QKNormSpec, RouterSpec


def read_qwen3_moe(fields: Fields, architecture: str, names: TensorNames, *, renormalize: bool) -> ModelSpec:
    """Return a model whose tensors have these names; `renormalize`: whether routing weights are made to add up to 1."""
    norm, bias = reading.rms_norm(fields), fields.boolean("attention_bias", False)
    window = reading.window(fields) if fields.boolean("use_sliding_window", False) else None
    mixer = reading.attention(fields, qkv_bias=bias, output_bias=bias, qk_norm=QKNormSpec(norm), window=window)
    count = "num_local_experts" if fields.has("num_local_experts") else "num_experts"  # the first: transformers 5
    router = RouterSpec(scores="softmax", renormalize=renormalize)
    dense, experts = reading.mlp(fields), mixtures.experts(fields, router, count=count)
    step, dense_layers = fields.integer("decoder_sparse_step", 1, 4096), frozenset(fields.integers("mlp_only_layers"))
    layers = mixtures.layers(
        (mixer,) * reading.num_layers(fields),
        lambda layer: dense if layer in dense_layers or (layer + 1) % step else experts,
        norm,
    )
    return reading.model(fields, architecture, layers, norm=norm, names=names)


QWEN3_MOE: Family = Family(
    architecture="Qwen3MoeForCausalLM",
    model_type="qwen3_moe",
    read=lambda fields: read_qwen3_moe(
        fields, QWEN3_MOE.architecture, LLAMA_NAMES, renormalize=fields.boolean("norm_topk_prob", False)
    ),
    defaults={
        "num_key_value_heads": 4,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 32768,
        "sliding_window": 4096,
        "intermediate_size": 6144,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "decoder_sparse_step": 1,
        "tie_word_embeddings": False,
    },
)
