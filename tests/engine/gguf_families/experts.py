"""The cases of `model/gguf/architectures/experts.py`."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from gguf_families.case import SCALES, YARN, Case, Tensors, TextCase, granite, pattern, permuted, window, yarn
from gguf_families.dense import LONG, longrope


def stacked(config: Any, name: str, array: np.ndarray, *, rope: bool = False) -> Tensors:
    """Experts' gate and up apart; a gate to one number as a vector."""
    block = f"blk.{name.split('.')[2]}" if name.startswith("model.layers.") else ""
    if name.endswith(("experts.gate_up_proj", "input_linear.weight")) and array.ndim == 3:
        gate, up = np.split(array, 2, axis=1)
        yield f"{block}.ffn_gate_exps.weight", gate
        yield f"{block}.ffn_up_exps.weight", up
    elif name.endswith(("experts.down_proj", "output_linear.weight")) and array.ndim == 3:
        yield f"{block}.ffn_down_exps.weight", array
    elif name.endswith("shared_mlp.input_linear.weight"):
        gate, up = np.split(array, 2)
        yield f"{block}.ffn_gate_shexp.weight", gate
        yield f"{block}.ffn_up_shexp.weight", up
    elif name.endswith("shared_mlp.output_linear.weight"):
        yield f"{block}.ffn_down_shexp.weight", array
    elif name.endswith("e_score_correction_bias"):
        yield f"{block}.exp_probs_b.bias", array
    elif name.endswith("mlp.gate.weight") or ".router." in name:
        yield f"{block}.ffn_gate_inp.weight", array
    elif rope:
        yield from permuted(config, name, array)
    else:
        yield name, np.squeeze(array)


def of_gpt_oss(config: Any, name: str, array: np.ndarray) -> Tensors:
    """Columns of gate and up lie in turn in the checkpoint, and all matrices of experts are transposed."""
    block = f"blk.{name.split('.')[2]}" if name.startswith("model.layers.") else ""
    ending = "bias" if name.endswith("bias") else "weight"
    if ".experts.gate_up_proj" in name:
        for which, part in (("gate", array[..., ::2]), ("up", array[..., 1::2])):
            rows = part if ending == "bias" else part.swapaxes(1, 2)
            yield f"{block}.ffn_{which}_exps.{ending}", np.ascontiguousarray(rows)
    elif ".experts.down_proj" in name:
        yield f"{block}.ffn_down_exps.{ending}", array if ending == "bias" else array.swapaxes(1, 2).copy()
    elif name.endswith("sinks"):
        yield f"{block}.attn_sinks.weight", array
    elif ".router." in name:
        yield f"{block}.ffn_gate_inp.{ending}", array
    else:
        yield name, array


def experts(config: Any) -> dict[str, Any]:
    """Return the keys of a mixture of experts."""
    count = getattr(config, "num_experts", None) or config.num_local_experts
    width = getattr(config, "moe_intermediate_size", None)
    width_key = {} if width is None else {"expert_feed_forward_length": width}
    return {"expert_count": count, "expert_used_count": config.num_experts_per_tok, **width_key}


def routed(config: Any) -> dict[str, Any]:
    """Return the keys of a mixture of DeepSeek's shape."""
    norm = {"expert_weights_norm": True} if config.norm_topk_prob else {}
    return {
        "expert_count": config.n_routed_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_shared_count": config.n_shared_experts,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "expert_group_count": config.n_group,
        "expert_group_used_count": config.topk_group,
        "expert_weights_scale": config.routed_scaling_factor,
        "leading_dense_block_count": config.first_k_dense_replace,
        **norm,
    }


def fused(config: Any, name: str, array: np.ndarray) -> Tensors:
    """Experts' gate and up as one tensor, as `--fuse-gate-up-exps` stores them."""
    if name.endswith("experts.gate_up_proj"):
        yield f"blk.{name.split('.')[2]}.ffn_gate_up_exps.weight", array
    else:
        yield from stacked(config, name, array)


def of_afmoe(config: Any, name: str, array: np.ndarray) -> Tensors:
    """The correction of a router's choice, which is no module's in the model."""
    if name.endswith(".expert_bias"):
        yield f"blk.{name.split('.')[2]}.exp_probs_b.bias", array
    else:
        yield from stacked(config, name, array)


def of_dbrx(config: Any, name: str, array: np.ndarray) -> Tensors:
    """Each layer's experts apart, and down transposed."""
    part = name.rpartition(".")[2]
    stored = {"w1": "gate", "v1": "up", "w2": "down"}.get(part)
    if stored is None:
        yield name, array
        return
    experts = array.reshape(config.ffn_config.moe_num_experts, config.ffn_config.ffn_hidden_size, -1)
    values = np.ascontiguousarray(experts.swapaxes(1, 2) if part == "w2" else experts)
    yield f"blk.{name.split('.')[2]}.ffn_{stored}_exps.weight", values


def of_mimo2(config: Any, name: str, array: np.ndarray) -> Tensors:
    """Sinks, which are no module's in the model."""
    if name.endswith(".sinks"):
        yield f"blk.{name.split('.')[2]}.attn_sinks.weight", array
    else:
        yield from stacked(config, name, array)


def mimo2(config: Any) -> dict[str, Any]:
    """MiMo V2's keys: layers with a window have twice the KV heads, and RoPE of another base."""
    swa = [kind == "sliding_attention" for kind in config.layer_types]
    return {
        **pattern(config),
        "attention.head_count_kv": [config.num_key_value_heads * (1 + flag) for flag in swa],
        "attention.value_length": config.v_head_dim,
        "attention.value_scale": config.attention_value_scale,
        "rope.freq_base_swa": config.rope_parameters["sliding_attention"]["rope_theta"],
        "expert_count": config.n_routed_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_feed_forward_length": config.moe_intermediate_size,
    }


def of_step35(config: Any, name: str, array: np.ndarray) -> Tensors:
    """Norms to which the converter adds 1, and the shared expert, which has another name in checkpoints."""
    if name.endswith("norm.weight"):
        array = array + 1
    yield from stacked(config, name.replace("mlp.shared_experts.", "share_expert."), array)


def step35(config: Any) -> dict[str, Any]:
    """Step 3.5's keys: layers with a window have their own number of heads, and RoPE of another base."""
    swa = [kind == "sliding_attention" for kind in config.layer_types]
    heads = (config.num_attention_heads, config.num_sliding_attention_heads)
    limits = {"exp": config.swiglu_limits, "shexp": config.swiglu_limits_shared}
    return {
        **pattern(config),
        **{f"swiglu_clamp_{name}": [float(each or 0) for each in found] for name, found in limits.items()},
        "attention.head_count": [heads[flag] for flag in swa],
        "attention.head_count_kv": [config.num_key_value_heads] * len(swa),
        "attention.key_length": config.head_dim,
        "rope.dimension_count": config.head_dim,
        "rope.freq_base_swa": config.rope_parameters["sliding_attention"]["rope_theta"],
        "expert_count": config.n_routed_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "expert_shared_feed_forward_length": config.share_expert_dim,
        "expert_weights_scale": config.moe_router_scaling_factor,
        "expert_weights_norm": True,
        "leading_dense_block_count": 1,
    }


def phimoe(config: Any) -> dict[str, Any]:
    """Phi-3.5-MoE's keys, as those of Phi-3."""
    rope, long = config.rope_parameters, {}
    if rope["rope_type"] == "longrope":
        long = {"rope.scaling.attn_factor": rope["short_mscale"]}
    original = rope.get("original_max_position_embeddings", config.max_position_embeddings)
    return {**experts(config), **window(config), **long, "rope.scaling.original_context_length": original}


def cohere2moe(config: Any) -> dict[str, Any]:
    """The keys of Cohere's mixtures."""
    return {
        **pattern(config),
        "feed_forward_length": config.prefix_dense_intermediate_size,
        "expert_count": config.num_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_feed_forward_length": config.intermediate_size,
        "expert_gating_func": {"softmax": 1, "sigmoid": 2}[config.expert_selection_fn],
        "expert_shared_count": config.num_shared_experts,
        "expert_weights_norm": config.norm_topk_prob,
        "leading_dense_block_count": config.mlp_layer_types.index("sparse"),
        "logit_scale": config.logit_scale,
        "rope.scaling.type": "none",
    }


class InTurn:
    """Query, key and value, which the model has one after another, as one tensor."""

    def __init__(self) -> None:
        self.parts: list[np.ndarray] = []

    def __call__(self, config: Any, name: str, array: np.ndarray) -> Tensors:
        """Yield the joined tensor in place of its last part."""
        if not name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")):
            yield from stacked(config, name, array)
            return
        self.parts.append(array)
        if len(self.parts) == 3:
            yield f"blk.{name.split('.')[2]}.attn_qkv.weight", np.concatenate(self.parts)
            self.parts.clear()


def dbrx(config: Any) -> dict[str, Any]:
    """DBRX's sizes, which its configuration has in two further ones."""
    attention, experts = config.attn_config, config.ffn_config
    return {
        "feed_forward_length": experts.ffn_hidden_size,
        "attention.head_count_kv": attention.kv_n_heads,
        "attention.layer_norm_epsilon": 1e-5,
        "attention.clamp_kqv": attention.clip_qkv,
        "rope.dimension_count": None,
        "expert_count": experts.moe_num_experts,
        "expert_used_count": experts.moe_top_k,
    }


def with_half_shared(model: Any) -> None:
    """A shared expert whose result Qwen's gate always halves."""
    for name, parameter in model.named_parameters():
        if "shared_expert_gate" in name:
            parameter.data.zero_()


def without_gate(config: Any, name: str, array: np.ndarray) -> Tensors:
    """A model of Qwen 2's whose shared expert counts half, as one with a shared expert of smaller numbers."""
    if "shared_expert.down_proj" in name:
        array = array / 2
    if "shared_expert_gate" not in name:
        yield from stacked(config, name, array, rope=True)


def with_next_layer(config: Any) -> dict[str, np.ndarray]:
    """The layer behind the model's that predicts a further token."""
    return {f"blk.{config.num_hidden_layers}.nextn.enorm.weight": np.ones(config.hidden_size, np.float32)}


MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
ROUTED = {
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.5,
}
GROUPS = {"n_group": 4, "topk_group": 2}
LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}


COHERE = {
    "num_hidden_layers": 5,
    "head_dim": 16,
    "intermediate_size": 32,
    "prefix_dense_intermediate_size": 80,
    "first_k_dense_replace": 1,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "num_shared_experts": 2,
    "expert_selection_fn": "sigmoid",
    "norm_topk_prob": True,
    "sliding_window": 4,
}


def of_llama4(config: Any, name: str, array: np.ndarray) -> Tensors:
    """Experts' matrices transposed, gate and up apart."""
    block = f"blk.{name.split('.')[2]}" if name.startswith("model.layers.") else ""
    if name.endswith("experts.gate_up_proj"):
        for role, part in zip(("gate", "up"), np.split(array.swapaxes(1, 2), 2, axis=1), strict=True):
            yield f"{block}.ffn_{role}_exps.weight", np.ascontiguousarray(part)
    elif name.endswith("experts.down_proj"):
        yield f"{block}.ffn_down_exps.weight", np.ascontiguousarray(array.swapaxes(1, 2))
    else:
        yield name, array


EXPERTS: dict[str, Case] = {
    "llama4": Case(
        "Llama4",
        {
            **LOCAL,
            "num_experts_per_tok": 1,
            "head_dim": 16,
            "num_hidden_layers": 4,
            "intermediate_size": 48,
            "intermediate_size_mlp": 96,
            "interleave_moe_layer_step": 2,
            "attention_chunk_size": 8192,
        },
        lambda config: {
            **experts(config),
            "feed_forward_length": config.intermediate_size_mlp,
            "expert_feed_forward_length": config.intermediate_size,
            "interleave_moe_layer_step": config.interleave_moe_layer_step,
        },
        of_llama4,
    ),
    "llama, experts": Case("Mixtral", LOCAL, experts, partial(stacked, rope=True)),
    "qwen2moe": Case(
        "Qwen2Moe",
        {**MOE, "shared_expert_intermediate_size": 48},
        lambda config: {**experts(config), "expert_shared_feed_forward_length": 48},
        stacked,
    ),
    "qwen3moe, fused": Case("Qwen3Moe", {**MOE, "norm_topk_prob": True, "head_dim": 16}, experts, fused),
    "qwen3moe": Case("Qwen3Moe", {**MOE, "norm_topk_prob": True, "head_dim": 16}, experts, stacked),
    "granitemoe": Case(
        "GraniteMoe", {**SCALES, **LOCAL}, lambda c: {**granite(c), **experts(c)}, partial(stacked, rope=True)
    ),
    "granitemoe, shared": Case(
        "GraniteMoeShared",
        {**SCALES, **LOCAL, "shared_intermediate_size": 48},
        lambda c: {**granite(c), **experts(c), "expert_shared_feed_forward_length": 48},
        partial(stacked, rope=True),
    ),
    "qwen3vlmoe": Case("Qwen3Moe", {**MOE, "norm_topk_prob": True, "head_dim": 16}, experts, stacked),
    "dots1": Case(
        "Dots1",
        {**ROUTED, **GROUPS, "norm_topk_prob": True, "head_dim": 16, "sliding_window": None},
        lambda c: {**routed(c), "expert_gating_func": 2},
        stacked,
    ),
    "minimax-m2": Case(
        "MiniMaxM2",
        {
            **LOCAL,
            "head_dim": 16,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
        },
        lambda c: {**experts(c), "expert_feed_forward_length": c.intermediate_size, "expert_gating_func": 2},
        stacked,
    ),
    "hunyuan-moe": Case(
        "HunYuanMoEV1",
        {"num_experts": 4, "moe_topk": 2, "head_dim": 16},
        lambda c: {
            "expert_count": 4,
            "expert_used_count": 2,
            "expert_feed_forward_length": c.intermediate_size,
            "expert_shared_feed_forward_length": c.intermediate_size,
            "expert_shared_count": 1,
        },
        stacked,
    ),
    "ernie4_5-moe": Case(
        "Ernie4_5_Moe",
        {
            "moe_num_experts": 4,
            "moe_k": 2,
            "moe_intermediate_size": 32,
            "moe_num_shared_experts": 2,
            "moe_layer_start_index": 1,
        },
        lambda c: {
            "expert_count": 4,
            "expert_used_count": 2,
            "expert_feed_forward_length": 32,
            "expert_shared_count": 2,
            "expert_shared_feed_forward_length": 48,
            "interleave_moe_layer_step": 1,
            "leading_dense_block_count": 1,
        },
        stacked,
    ),
    "bailingmoe2": Case(
        "Glm4Moe",
        {**ROUTED, **GROUPS, "n_shared_experts": 1, "use_qk_norm": True, "head_dim": 16, "norm_topk_prob": True},
        lambda c: {
            **routed(c),
            "expert_gating_func": 2,
            "expert_shared_feed_forward_length": c.moe_intermediate_size,
            "nextn_predict_layers": 0,
        },
        InTurn(),
    ),
    "bailingmoe": Case(
        "Qwen2Moe",
        {
            **MOE,
            "shared_expert_intermediate_size": 64,
            "qkv_bias": False,
            "norm_topk_prob": True,
        },
        lambda c: {
            **experts(c),
            "expert_shared_count": 2,
            "leading_dense_block_count": 0,
            "expert_weights_scale": 1.0,
            "expert_weights_norm": True,
        },
        without_gate,
        prepare=with_half_shared,
    ),
    "afmoe": Case(
        "Afmoe",
        {
            **MOE,
            "num_hidden_layers": 4,
            "head_dim": 16,
            "num_shared_experts": 1,
            "num_dense_layers": 1,
            "route_scale": 1.5,
            "sliding_window": 4,
            "mup_enabled": True,
        },
        lambda c: {
            **experts(c),
            **window(c),
            "expert_shared_count": c.num_shared_experts,
            "leading_dense_block_count": c.num_dense_layers,
            "expert_weights_norm": True,
            "expert_weights_scale": c.route_scale,
            "expert_gating_func": 2,
        },
        of_afmoe,
    ),
    "exaone-moe": Case(
        "ExaoneMoe",
        {
            **MOE,
            "num_hidden_layers": 4,
            "head_dim": 16,
            "num_shared_experts": 2,
            "first_k_dense_replace": 1,
            "sliding_window": 4,
            "sliding_window_pattern": 2,
            "n_group": 1,
            "topk_group": 1,
        },
        lambda c: {
            **experts(c),
            **pattern(c),
            "expert_shared_count": c.num_shared_experts,
            "leading_dense_block_count": 1,
            "expert_weights_norm": c.norm_topk_prob,
            "expert_weights_scale": c.routed_scaling_factor,
            "expert_gating_func": 2,
            "rope.scaling.type": "none",
        },
        stacked,
    ),
    "mimo2": Case(
        "MiMoV2Flash",
        {
            "num_key_value_heads": 2,
            "head_dim": 24,
            "v_head_dim": 10,
            "num_hidden_layers": 4,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
            "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
            "sliding_window": 4,
            "n_routed_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 32,
            "attention_value_scale": 0.7,
        },
        mimo2,
        of_mimo2,
    ),
    "phimoe": Case("Phimoe", {**LOCAL, "attention_bias": True, "lm_head_bias": True}, phimoe, stacked),
    "phimoe, long": Case(
        "Phimoe",
        {**LOCAL, "rope_parameters": {**LONG, "short_mscale": 1.2, "long_mscale": 1.2}, "sliding_window": 4},
        phimoe,
        stacked,
        longrope,
    ),
    "step35": TextCase(
        "Step3p7",
        {
            "head_dim": 16,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
            "sliding_window": 4,
            "num_sliding_attention_heads": 4,
            "mlp_layer_types": ["dense", "sparse", "sparse"],
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 36,
            "share_expert_dim": 20,
            "moe_router_scaling_factor": 1.7,
            "swiglu_limits": [0.0, 0.4, None],
            "swiglu_limits_shared": [0.5, None, 0.6],
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 0.5},
                "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
            },
        },
        step35,
        of_step35,
    ),
    "cohere2moe": Case("Cohere2Moe", COHERE, cohere2moe, stacked, layer_norm=True),
    "cohere2moe, softmax": Case(
        "Cohere2Moe",
        {**COHERE, "expert_selection_fn": "softmax", "num_shared_experts": 0},
        cohere2moe,
        stacked,
        layer_norm=True,
    ),
    "dbrx": Case(
        "Dbrx",
        {
            "d_model": 64,
            "n_heads": 8,
            "n_layers": 3,
            "max_seq_len": 512,
            "attn_config": {"kv_n_heads": 2, "clip_qkv": 1.5, "rope_theta": 10000.0},
            "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2},
        },
        dbrx,
        of_dbrx,
    ),
    "deepseek": Case(
        "Qwen2Moe",
        {**MOE, "shared_expert_intermediate_size": 64, "mlp_only_layers": [0], "qkv_bias": False},
        lambda c: {
            **experts(c),
            "expert_shared_count": 2,
            "leading_dense_block_count": 1,
            "expert_weights_scale": 1.0,
            "rope.scaling.type": "none",
        },
        without_gate,
        prepare=with_half_shared,
    ),
    "glm4moe": Case(
        "Glm4Moe",
        {
            **ROUTED,
            **GROUPS,
            "use_qk_norm": True,
            "attention_bias": True,
            "head_dim": 16,
            "norm_topk_prob": True,
        },
        lambda c: {
            **routed(c),
            "expert_gating_func": 2,
            "nextn_predict_layers": 1,
            "block_count": c.num_hidden_layers + 1,
        },
        stacked,
        with_next_layer,
    ),
    "olmoe": Case("Olmoe", {"num_experts": 4, "num_experts_per_tok": 2}, experts, stacked),
    "gpt-oss": Case(
        "GptOss",
        {**LOCAL, "head_dim": 16, "sliding_window": 4, "rope_parameters": {**YARN, "truncate": False}},
        lambda config: {
            **experts(config),
            **window(config),
            **yarn(config),
            "expert_feed_forward_length": config.intermediate_size,
        },
        of_gpt_oss,
    ),
}
