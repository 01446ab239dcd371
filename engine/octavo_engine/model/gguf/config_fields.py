"""The fields of config.json that several GGUF architectures' headers give under keys of their own.

What a header does not state is a constant in llama.cpp, such as which layers of Gemma 3 have a window.
"""

from __future__ import annotations

from typing import Any

from octavo_engine.model.gguf.header import Header

_SCORES = {1: "softmax", 2: "sigmoid"}
"""The functions of a router's scores by their numbers in headers."""


def window_field(header: Header) -> dict[str, Any]:
    """Return the window of layers that have one; 0 in the header stands for none."""
    window = header.integer("attention.sliding_window", 0, 1 << 30, default=0)
    return {"sliding_window": window or None}


def refuse_causal(header: Header) -> None:
    """Raise ModelLoadError if the header of an encoder that need not say so denies that tokens see those after them."""
    if header.fields.boolean(key := header.key("attention.causal"), False):
        raise header.fields.wrong(key, True, "is not an encoder's; convert the model again with a current llama.cpp")


def layer_types(header: Header, period: int | None) -> dict[str, Any]:
    """Return each layer's type: the header has a flag for each layer, or a number of layers of which the last one sees
    all tokens, by default `period`. ModelLoadError for another pattern.

    `period` None: there must be flags, as where llama.cpp needs this key or takes a number in another way.
    Layers that predict further tokens have no flag, or one that is not read.
    """
    name, count = header.key("attention.sliding_window_pattern"), header.num_layers
    flags = header.fields.values.get(name) if header.fields.has(name) else period
    if period is not None and isinstance(flags, int) and not isinstance(flags, bool) and flags > 0:
        flags = [(layer + 1) % flags != 0 for layer in range(count)]
    if not isinstance(flags, list) or len(flags) not in (count, count + header.predicting_layers):
        raise header.fields.wrong(name, flags, f"is not a flag for each of {count} layers")
    return {"layer_types": [f"{'sliding' if flag else 'full'}_attention" for flag in flags[:count]]}


def experts_fields(header: Header) -> dict[str, Any]:
    """Return the numbers and sizes of experts, under the names of several families."""
    count, chosen = header.integer("expert_count"), header.integer("expert_used_count")
    sizes = {"num_experts": count, "num_local_experts": count, "num_experts_per_tok": chosen}
    width = "expert_feed_forward_length"
    return {**sizes, "moe_intermediate_size": header.integer(width)} if header.has(width) else sizes


def rms_epsilon(header: Header) -> dict[str, Any]:
    """Return the epsilon of a family that calls it `rms_norm_eps`, whichever of both keys the header has for it."""
    names = ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon")
    name = next((name for name in names if header.has(name)), names[0])
    return {"rms_norm_eps": header.fields.number(header.key(name), 0, 1)}


def router_scores(header: Header, *scores: str) -> str:
    """Return the function of a router's scores: one of `scores`, the first one where a file does not state it.

    ModelLoadError for another one.
    """
    key = header.key("expert_gating_func")
    number = header.integer("expert_gating_func", 0, 1 << 16, default=0)
    function = _SCORES.get(number, "") or (scores[0] if number == 0 else "")
    if function not in scores:
        raise header.fields.wrong(key, number, f"is not supported; supported: {', '.join(scores)}")
    return function


def router_fields(header: Header, *scores: str) -> dict[str, Any]:
    """Return the fields of DeepSeek's mixtures of experts and those after them, under DeepSeek's names.

    `scores`: those of `router_scores`.
    """
    groups = {"n_group": "expert_group_count", "topk_group": "expert_group_used_count"}
    return {
        **experts_fields(header),
        **{ours: header.integer(theirs, 0, default=1) or 1 for ours, theirs in groups.items()},
        "n_routed_experts": header.integer("expert_count"),
        "n_shared_experts": header.integer("expert_shared_count", 0, default=0),
        "first_k_dense_replace": header.integer("leading_dense_block_count", 0, default=0),
        "norm_topk_prob": header.fields.boolean(header.key("expert_weights_norm"), False),
        "routed_scaling_factor": header.number("expert_weights_scale", default=1.0) or 1.0,  # 0: there is none
        "scoring_func": router_scores(header, *scores),
    }


def phi3_fields(header: Header) -> dict[str, Any]:
    """Return Phi-3's fields."""
    original = header.integer("rope.scaling.original_context_length", default=header.integer("context_length"))
    return {**window_field(header), "original_max_position_embeddings": original}


def granite_with_rope(header: Header) -> dict[str, Any]:
    """Return the fields of Granites with RoPE; ModelLoadError for a file whose RoPE this key switches off."""
    if not header.fields.boolean(key := header.key("rope.scaling.finetuned"), True):
        raise header.fields.wrong(key, False, "is not supported here: attention without RoPE")
    return granite_fields(header)


def granite_fields(header: Header) -> dict[str, Any]:
    """Return Granite's fields."""
    scales = {
        "attention_multiplier": "attention.scale",
        "embedding_multiplier": "embedding_scale",
        "residual_multiplier": "residual_scale",
        "logits_scaling": "logit_scale",
    }
    return header.given(scales)
