"""The fields of config.json that several GGUF architectures' headers give under keys of their own.

What a header does not state is a constant in llama.cpp, such as which layers of Gemma 3 have a window.
"""

from __future__ import annotations

from typing import Any

from octavo_engine.model.gguf.header import Header


def window_field(header: Header) -> dict[str, Any]:
    """Return the window of layers that have one; 0 in the header stands for none."""
    window = header.integer("attention.sliding_window", 0, 1 << 30, default=0)
    return {"sliding_window": window or None}


def experts_fields(header: Header) -> dict[str, Any]:
    """Return the numbers and sizes of experts, under the names of several families."""
    count, chosen = header.integer("expert_count"), header.integer("expert_used_count")
    sizes = {"num_experts": count, "num_local_experts": count, "num_experts_per_tok": chosen}
    width = "expert_feed_forward_length"
    return {**sizes, "moe_intermediate_size": header.integer(width)} if header.has(width) else sizes


def granite_fields(header: Header) -> dict[str, Any]:
    """Return Granite's fields."""
    scales = {
        "attention_multiplier": "attention.scale",
        "embedding_multiplier": "embedding_scale",
        "residual_multiplier": "residual_scale",
        "logits_scaling": "logit_scale",
    }
    return header.given(scales)
