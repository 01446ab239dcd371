"""The cases of `model/gguf/architectures/gemma.py`."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import numpy as np

from gguf_families.case import YARN, Case, Tensors, gathered, pattern, window, yarn


def with_norms_whole(config: Any, name: str, array: np.ndarray) -> Tensors:
    """Norms that checkpoints hold less one."""
    yield name, array + 1 if name.endswith("norm.weight") else array


def capped(config: Any) -> dict[str, Any]:
    """Gemma 2's bounds."""
    caps = {f"{part}_logit_softcapping": getattr(config, f"{part}_logit_softcapping") for part in ("attn", "final")}
    return {**window(config), **caps}


def of_two_ropes(config: Any) -> dict[str, Any]:
    """The window, and the RoPE of layers with it."""
    local = {"rope.freq_base_swa": config.rope_parameters["sliding_attention"]["rope_theta"]}
    return {**pattern(config), **local, "final_logit_softcapping": config.final_logit_softcapping}


def of_gemma3n(config: Any) -> dict[str, Any]:
    """Gemma 3n's sizes, and how far above the mean a gate counts, in standard deviations."""
    spread = NormalDist()
    shares = config.activation_sparsity_pattern
    return {
        **of_two_ropes(config),
        "feed_forward_length": list(config.intermediate_size),
        "altup.active_idx": config.altup_active_idx,
        "altup.num_inputs": config.altup_num_inputs,
        "embedding_length_per_layer_input": config.hidden_size_per_layer_input,
        "attention.shared_kv_layers": config.num_kv_shared_layers,
        "activation_sparsity_scale": [spread.inv_cdf(share) if share else -math.inf for share in shares],
    }


_STACKED = gathered(r"(model\.altup_\w+)\.\d+(\..*)", lambda config, name: config.altup_num_inputs - 1)


def with_endings(config: Any, name: str, array: np.ndarray) -> Tensors:
    """Parameters outside modules as those of one, and the projections of further vectors as one tensor."""
    if name.endswith("layer_scalar"):
        array[...] = 0.5  # in the model, too
    for scale, where in ((".router.scale", "ffn_gate_inp"), (".router.per_expert_scale", "ffn_down_exps")):
        if name.endswith(scale):
            array[...] = np.linspace(0.5, 1.5, len(array))
            yield f"blk.{name.split('.')[2]}.{where}.scale", array
            return
    for each, stored in _STACKED(config, name, array):
        yield (
            (
                f"{each}.weight"
                if each.endswith(("_scale", "layer_scalar", "experts.gate_up_proj", "experts.down_proj"))
                else each
            ),
            stored,
        )


def of_gemma4(config: Any) -> dict[str, Any]:
    """Gemma 4's sizes of layers that see all tokens, and of others."""
    full = [kind == "full_attention" for kind in config.layer_types]
    shared, width = config.num_kv_shared_layers, config.intermediate_size
    kv_heads = {False: config.num_key_value_heads, True: 1 if config.attention_k_eq_v else config.num_key_value_heads}
    doubled = 2 * width if config.use_double_wide_mlp else width
    return {
        **of_two_ropes(config),
        "feed_forward_length": [width] * (len(full) - shared) + [doubled] * shared,
        "attention.head_count_kv": [kv_heads[each] for each in full],
        "attention.key_length": 32,
        "attention.key_length_swa": 16,
        "rope.dimension_count": 32,
        "rope.dimension_count_swa": 16,
        "attention.shared_kv_layers": shared,
        "embedding_length_per_layer_input": config.hidden_size_per_layer_input or 0,
    }


def proportional(config: Any) -> dict[str, np.ndarray]:
    """The divisors of Gemma 4's angles, a quarter of whose pairs rotate."""
    return {"rope_freqs.weight": np.array([1.0] * 4 + [1e30] * 12, np.float32)}


GEMMA3N: dict[str, Any] = {
    "head_dim": 16,
    "sliding_window": 4,
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "intermediate_size": [96, 80, 96, 96],
    "activation_sparsity_pattern": [0.9, 0.5, 0.0, 0.0],
    "num_kv_shared_layers": 2,
    "hidden_size_per_layer_input": 16,
    "vocab_size_per_layer_input": 131,
    "laurel_rank": 8,
    "altup_active_idx": 1,
}
GEMMA4: dict[str, Any] = {
    "head_dim": 16,
    "global_head_dim": 32,
    "sliding_window": 4,
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 2000.0},
    },
    "final_logit_softcapping": 5.0,
    "allow_global_per_layer_attribute_access": True,
}
PER_LAYER = {"hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 131}
SHARED = {"num_kv_shared_layers": 2, "use_double_wide_mlp": True}
EXPERTS: dict[str, Any] = {
    "enable_moe_block": True,
    "num_experts": 4,
    "top_k_experts": 2,
    "moe_intermediate_size": 48,
    "hidden_size_per_layer_input": 0,
}
KEYS_ARE_VALUES = {"attention_k_eq_v": True, "num_global_key_value_heads": 1, "hidden_size_per_layer_input": 0}


GEMMA: dict[str, Case] = {
    "gemma": Case("Gemma", {"head_dim": 16}, convert=with_norms_whole),
    "gemma2": Case(
        "Gemma2",
        {"head_dim": 16, "sliding_window": 4, "query_pre_attn_scalar": 16, "attn_logit_softcapping": 5.0},
        capped,
        with_norms_whole,
    ),
    "gemma3": Case(
        "Gemma3",
        {"head_dim": 16, "sliding_window": 4, "query_pre_attn_scalar": 16, "num_hidden_layers": 6},
        window,
        with_norms_whole,
    ),
    "gemma3, yarn": Case(
        "Gemma3",
        {
            "head_dim": 16,
            "sliding_window": 4,
            "query_pre_attn_scalar": 16,
            "layer_types": ["sliding_attention", "full_attention", "full_attention"],
            "rope_parameters": {
                "full_attention": YARN,
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        },
        lambda config: {**pattern(config), **yarn(config)},
        with_norms_whole,
    ),
    "gemma3n": Case("Gemma3n", GEMMA3N, of_gemma3n, with_endings),
    "gemma4": Case("Gemma4", {**GEMMA4, **PER_LAYER, **SHARED}, of_gemma4, with_endings, proportional),
    "gemma4, experts": Case(
        "Gemma4",
        {**GEMMA4, **EXPERTS},
        lambda config: {
            **of_gemma4(config),
            "expert_count": 4,
            "expert_used_count": 2,
            "expert_feed_forward_length": config.moe_intermediate_size,
        },
        with_endings,
        proportional,
    ),
    "gemma4, keys are values": Case("Gemma4", {**GEMMA4, **KEYS_ARE_VALUES}, of_gemma4, with_endings, proportional),
}
