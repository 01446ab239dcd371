"""The fields of config.json that a GGUF header's keys stand for, by architecture.

llama.cpp's converter writes some keys of its own for each architecture. What a header does not state is a constant in
llama.cpp, such as which layers of Gemma 3 have a window.
"""

from __future__ import annotations

from typing import Any

from octavo_engine.model.gguf.header import Header


def _window(header: Header) -> dict[str, Any]:
    """Return the window of layers that have one; 0 in the header stands for none."""
    window = header.integer("attention.sliding_window", 0, 1 << 30, default=0)
    return {"sliding_window": window or None}


def experts_fields(header: Header) -> dict[str, Any]:
    """Return the numbers and sizes of experts, under the names of several families."""
    count, chosen = header.integer("expert_count"), header.integer("expert_used_count")
    sizes = {"num_experts": count, "num_local_experts": count, "num_experts_per_tok": chosen}
    width = "expert_feed_forward_length"
    return {**sizes, "moe_intermediate_size": header.integer(width)} if header.has(width) else sizes


def mixtral_fields(header: Header) -> dict[str, Any]:
    """Return Mixtral's fields."""
    return {**experts_fields(header), "sliding_window": None}


def qwen2_moe_fields(header: Header) -> dict[str, Any]:
    """Return the fields of Qwen 2's mixtures of experts."""
    shared = header.integer("expert_shared_feed_forward_length")
    return {**experts_fields(header), "shared_expert_intermediate_size": shared, "norm_topk_prob": False}


def qwen3_moe_fields(header: Header) -> dict[str, Any]:
    """Return the fields of Qwen 3's mixtures of experts."""
    return {**experts_fields(header), "norm_topk_prob": True}


def _score_scale(header: Header, layers_of_largest: int) -> dict[str, Any]:
    """Return Gemma's scale of scores: by hidden size / heads in a generation's largest model, else by the head size."""
    heads, hidden = header.integer("attention.head_count"), header.integer("embedding_length")
    largest = header.integer("block_count") == layers_of_largest
    by_head = header.integer("attention.key_length", default=hidden // heads)
    return {"query_pre_attn_scalar": hidden // heads if largest else by_head}


def gemma2_fields(header: Header) -> dict[str, Any]:
    """Return Gemma 2's fields."""
    caps = {f"{part}_logit_softcapping": f"{part}_logit_softcapping" for part in ("attn", "final")}
    window = {"sliding_window": header.integer("attention.sliding_window", default=4096)}
    return {**_score_scale(header, 46), **window, **header.given(caps)}


def gemma3_fields(header: Header) -> dict[str, Any]:
    """Return Gemma 3's fields."""
    scaling, factor = header.rope_scaling()
    full: dict[str, Any] = {"rope_theta": header.number("rope.freq_base", default=10000.0), "rope_type": "default"}
    if scaling == "linear":
        full |= {"rope_type": scaling, "factor": factor}
    local = {"rope_theta": header.number("rope.freq_base_swa", default=10000.0), "rope_type": "default"}
    window = header.integer("attention.sliding_window", 0, 1 << 30, default=0)
    pattern = header.integer("attention.sliding_window_pattern", default=6) if window else 1
    return {
        **_score_scale(header, 62),
        **header.given({"final_logit_softcapping": "final_logit_softcapping"}),
        "sliding_window": window or None,
        "sliding_window_pattern": pattern,
        "rope_parameters": {"full_attention": full, "sliding_attention": local},
    }


def phi3_fields(header: Header) -> dict[str, Any]:
    """Return Phi-3's fields."""
    original = header.integer("rope.scaling.original_context_length", default=header.integer("context_length"))
    return {**_window(header), "original_max_position_embeddings": original}


def granite_fields(header: Header) -> dict[str, Any]:
    """Return Granite's fields."""
    scales = {
        "attention_multiplier": "attention.scale",
        "embedding_multiplier": "embedding_scale",
        "residual_multiplier": "residual_scale",
        "logits_scaling": "logit_scale",
    }
    return header.given(scales)


def granite_moe_fields(header: Header) -> dict[str, Any]:
    """Return the fields of Granite's mixtures of experts."""
    shared = header.integer("expert_shared_feed_forward_length", 0, default=0)
    return {**granite_fields(header), **experts_fields(header), "shared_intermediate_size": shared}


def olmo_fields(header: Header) -> dict[str, Any]:
    """Return OLMo's fields."""
    return header.given({"clip_qkv": "attention.clamp_kqv"})


def olmo2_fields(header: Header) -> dict[str, Any]:
    """Return OLMo 2's fields; ModelLoadError for a file of OLMo 3, which has a window."""
    if header.has("attention.sliding_window"):
        name = header.key("attention.sliding_window")
        window = header.integer("attention.sliding_window")
        raise header.fields.wrong(name, window, "is OLMo 3's, whose GGUF files are not supported")
    return {}


def stablelm_fields(header: Header) -> dict[str, Any]:
    """Return StableLM's fields."""
    parallel = header.fields.boolean(header.key("use_parallel_residual"), True)
    return {"use_parallel_residual": parallel, "use_qkv_bias": header.stored("attn_q.bias")}


def neox_fields(header: Header) -> dict[str, Any]:
    """Return GPT-NeoX's fields."""
    parallel = header.fields.boolean(header.key("use_parallel_residual"), True)
    hidden, heads = header.integer("embedding_length", 1, 1 << 20), header.integer("attention.head_count", 1, 1 << 16)
    size = max(1, hidden // heads)
    rotated = header.integer("rope.dimension_count", 1, 1 << 16, default=size)
    return {"use_parallel_residual": parallel, "rotary_pct": rotated / size}


def command_r_fields(header: Header) -> dict[str, Any]:
    """Return Command R's fields."""
    return {"logit_scale": header.number("logit_scale"), "use_qk_norm": header.stored("attn_q_norm.weight")}


def cohere2_fields(header: Header) -> dict[str, Any]:
    """Return the fields of Command R7B and later ones."""
    window = header.integer("attention.sliding_window")
    return {"logit_scale": header.number("logit_scale"), "sliding_window": window, "attention_bias": False}


def falcon_fields(header: Header) -> dict[str, Any]:
    """Return Falcon's fields: the first one has one KV head, later ones several, and one norm or two in each layer."""
    kv_heads = header.integer("attention.head_count_kv", default=1)
    norms = 2 if header.stored("attn_norm_2.weight") else 1
    new = kv_heads > 1 or norms == 2
    width = header.integer("feed_forward_length")
    shape = {"num_ln_in_parallel_attn": norms, "num_kv_heads": kv_heads, "ffn_hidden_size": width}
    return {"new_decoder_architecture": new, **shape}


def gpt2_fields(header: Header) -> dict[str, Any]:
    """Return GPT-2's fields."""
    return {"n_inner": header.integer("feed_forward_length")}


def starcoder2_fields(header: Header) -> dict[str, Any]:
    """Return StarCoder 2's fields."""
    return {"norm_epsilon": header.number("attention.layer_norm_epsilon"), "use_bias": True}


def nemotron_fields(header: Header) -> dict[str, Any]:
    """Return Nemotron's fields."""
    return {"norm_eps": header.number("attention.layer_norm_epsilon")}


def gpt_oss_fields(header: Header) -> dict[str, Any]:
    """Return gpt-oss's fields."""
    width = header.integer("expert_feed_forward_length")
    window = header.integer("attention.sliding_window")
    return {**experts_fields(header), "intermediate_size": width, "sliding_window": window}
