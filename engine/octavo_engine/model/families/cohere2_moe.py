"""Cohere's mixtures of experts: Command A with experts in all layers, or in all but the first ones.

The dense layers at the start (`first_k_dense_replace`) have a pattern of sliding windows of their own.
"""

from __future__ import annotations

from octavo_engine.model.families import mixtures, reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import AttentionSpec, HeadSpec, LayerNorms, LayerSpec, ModelSpec, MoESpec, RouterSpec


def _read(fields: Fields) -> ModelSpec:
    norm = reading.rms_norm(fields) if fields.has("rms_norm_eps") else reading.layer_norm(fields, bias=False)
    first = fields.integer("first_k_dense_replace", 0, 1 << 16, default=0)
    size = "prefix_dense_intermediate_size"
    width = reading.intermediate_size(fields, size if fields.has(size) else "intermediate_size")
    dense = reading.mlp(fields, intermediate_size=width)
    moe, types = _experts(fields), mixtures.layer_types(fields, first)
    layers = tuple(
        LayerSpec(
            mixer=_mixer(fields, window, dense=types[layer] == "dense"),
            feed_forward=dense if types[layer] == "dense" else moe,
            norms=LayerNorms(before_mixer=norm),
            parallel=True,
        )
        for layer, window in enumerate(reading.windows(fields, default=lambda layer: _windowed(fields, layer, first)))
    )
    head = HeadSpec(fields.boolean("tie_word_embeddings", True), scale=reading.scale(fields, "logit_scale"))
    return reading.model(fields, COHERE2_MOE.architecture, layers, norm=norm, head=head)


def _windowed(fields: Fields, layer: int, first: int) -> bool:
    """Return True if a layer has a window; the dense layers at the start have a pattern of their own."""
    name = "prefix_dense_sliding_window_pattern" if layer < first else "sliding_window_pattern"
    return ((layer if layer < first else layer - first) + 1) % fields.integer(name, 1, 4096) != 0


def _mixer(fields: Fields, window: int | None, *, dense: bool) -> AttentionSpec:
    bias = fields.boolean("attention_bias", False)
    rotates = window is not None or (dense and fields.integer("prefix_dense_sliding_window_pattern", 1, 4096) == 1)
    mixer = reading.attention(fields, qkv_bias=bias, output_bias=bias, window=window)
    return reading.interleaved(mixer) if rotates else reading.without_rope(mixer)


def _experts(fields: Fields) -> MoESpec:
    choice, combination = fields.text("expert_selection_fn"), fields.text("shared_expert_combination_strategy")
    if choice not in ("softmax", "sigmoid"):
        raise fields.wrong("expert_selection_fn", choice, "is neither softmax nor sigmoid")
    if combination not in ("sum", "average"):
        raise fields.wrong("shared_expert_combination_strategy", combination, "is neither sum nor average")
    router = RouterSpec(
        scores="softmax of chosen" if choice == "softmax" else "sigmoid of chosen",
        renormalize=choice == "sigmoid" and fields.boolean("norm_topk_prob", True),
    )
    shared = mixtures.shared(fields, "num_shared_experts", "intermediate_size")
    scale = 0.5 if shared is not None and combination == "average" else 1.0
    return mixtures.experts(fields, router, size="intermediate_size", shared=shared, scale=scale)


COHERE2_MOE = Family(
    architecture="Cohere2MoeForCausalLM",
    model_type="cohere2_moe",
    read=_read,
    defaults={
        "head_dim": 128,
        "hidden_act": "silu",
        "layer_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 8192,
        "sliding_window": 4096,
        "sliding_window_pattern": 4,
        "prefix_dense_sliding_window_pattern": 1,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "num_shared_experts": 0,
        "shared_expert_combination_strategy": "average",
        "expert_selection_fn": "softmax",
        "logit_scale": 0.0625,
        "eos_token_id": 255001,
    },
    left_out=frozenset({"rope_scaling"}),  # transformers reads rope_parameters alone
)
