"""The cases of `model/gguf/architectures/hybrid.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from gguf_families.case import SCALES, Case, Tensors, granite, permuted
from gguf_families.experts import experts, stacked
from gguf_families.latent import latent, sizes


def stated(config: Any, name: str, array: np.ndarray) -> Tensors:
    """Decays as factors of time, convolutions without the dimension of 1, and experts one by one's stacks."""
    block = f"blk.{name.split('.')[2]}" if ".layers." in name else ""
    if name.endswith(".A_log"):
        yield name, -np.exp(array)
    elif name.endswith((".conv1d.weight", ".conv.conv.weight")):
        yield name, np.squeeze(array, 1)
    elif name.endswith(".dt_bias"):
        yield name.replace(".dt_bias", ".dt_proj.bias"), array
    elif name.endswith("experts.gate_up_proj"):
        gate, up = np.split(array, 2, axis=1)
        yield f"{block}.ffn_gate_exps.weight", gate
        yield f"{block}.ffn_up_exps.weight", up
    elif name.endswith("experts.up_proj"):
        yield f"{block}.ffn_up_exps.weight", array
    elif name.endswith("experts.down_proj"):
        yield f"{block}.ffn_down_exps.weight", array
    elif name.endswith(("expert_bias", "correction_bias")):
        yield f"{block}.exp_probs_b.bias", array
    else:
        yield name, array


def in_heads(config: Any, name: str, array: np.ndarray) -> Tensors:
    """Mamba-2's numbers of heads as columns, its norm with a row for each group."""
    for stored, values in stated(
        config, name.replace("model.layers.", "backbone.layers.") if ".mixer." in name else name, array
    ):
        if stored.endswith((".A_log", ".D")):
            yield stored, values[:, None]
        elif stored.endswith(("mamba.norm.weight", "mixer.norm.weight")):
            groups = getattr(config, "n_groups", None) or config.mamba_n_groups
            yield stored, values.reshape(groups, -1)
        else:
            yield stored, values


def of_granite(config: Any, name: str, array: np.ndarray) -> Tensors:
    """Also with rows of query and key as pairs, and a feed-forward's gate and up apart."""
    block = f"blk.{name.split('.')[2]}" if ".layers." in name else ""
    if name.endswith((".q_proj.weight", ".k_proj.weight")):
        yield from permuted(config, name, array)
    elif ".mamba." in name:
        yield from in_heads(config, name, array)
    elif ".shared_mlp." in name and not config.num_local_experts:
        parts = np.split(array, 2) if "input" in name else [array]
        roles = ("gate", "up") if "input" in name else ("down",)
        yield from ((f"{block}.ffn_{role}.weight", part) for role, part in zip(roles, parts, strict=True))
    else:
        yield from stacked(config, name, array)


def of_falcon_h1(config: Any, name: str, array: np.ndarray) -> Tensors:
    """With the multipliers in the weights."""
    inner, shared = config.mamba_d_ssm, config.mamba_n_groups * config.mamba_d_state
    sizes = (inner, inner, shared, shared, config.mamba_n_heads)
    factors = {
        "embed_tokens": config.embedding_multiplier,
        "lm_head": config.lm_head_multiplier,
        "gate_proj": config.mlp_multipliers[0],
        "down_proj": config.mlp_multipliers[1],
        "q_proj": config.attention_in_multiplier,
        "k_proj": config.attention_in_multiplier * config.key_multiplier,
        "v_proj": config.attention_in_multiplier,
        "o_proj": config.attention_out_multiplier,
        "in_proj": config.ssm_in_multiplier * np.repeat(config.ssm_multipliers, sizes)[:, None],
        "out_proj": config.ssm_out_multiplier,
    }
    factor = factors.get(name.split(".")[-2], 1.0)
    yield from in_heads(config, name, (array * factor).astype(np.float32))


def of_delta_net(config: Any, name: str, array: np.ndarray) -> Tensors:
    """Norms whole, Qwen3-Next's projections in other tensors, and Qwen3.5's value heads in another order."""
    keys, values = config.linear_num_key_heads, config.linear_num_value_heads
    inner, size = keys * config.linear_key_head_dim, config.linear_value_head_dim
    if name.endswith("in_proj_qkvz.weight"):
        per_key = values // keys * size
        groups = array.reshape(keys, -1, array.shape[1])
        ends = (config.linear_key_head_dim, 2 * config.linear_key_head_dim, 2 * config.linear_key_head_dim + per_key)
        parts = [part.reshape(-1, array.shape[1]) for part in np.split(groups, ends, axis=1)]
        yield name.replace("qkvz", "qkv"), np.concatenate(parts[:3])
        yield name.replace("qkvz", "z"), parts[3]
        return
    if name.endswith("norm.weight") and "linear_attn" not in name:
        array = array + 1
    if config.model_type.startswith("qwen3_5") and "linear_attn" in name:
        array = tiled(array, name, keys, values, 2 * inner, size)
    if ".mlp." in name:
        yield from stacked(config, name, array)
    else:
        yield from stated(config, name, array)


def tiled(array: np.ndarray, name: str, keys: int, values: int, before: int, size: int) -> np.ndarray:
    """The first value head of each key head before the second of each, and so on."""
    if name.endswith("out_proj.weight"):
        return tiled(array.T, "in_proj_z", keys, values, 0, size).T.copy()
    if name.endswith("linear_attn.norm.weight"):
        return array
    before = before if "qkv" in name or "conv1d" in name else 0
    size = size if "qkv" in name or "conv1d" in name or "in_proj_z" in name else 1
    heads = array[before:].reshape(keys, values // keys, size, *array.shape[1:]).swapaxes(0, 1)
    return np.concatenate([array[:before], heads.reshape(-1, *array.shape[1:])])


def of_kimi(config: Any, name: str, array: np.ndarray) -> Tensors:
    """Numbers of heads and convolutions with dimensions of 1 around them."""
    name = name.replace(".forget_gate.", ".")
    if name.endswith(".A_log"):
        yield name, -np.exp(array)
    elif name.endswith(".conv1d.weight"):
        yield from ((name.replace(".conv1d", f".{part}_conv1d"), rows[None]) for part, rows in split_rows(array))
    elif name.endswith((".dt_bias", "correction_bias")) or ".experts." in name:
        yield from stated(config, name, array)
    else:
        yield from latent(config, name, array)


def split_rows(array: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the rows of query, key and value."""
    return zip("qkv", np.split(array, 3), strict=True)


NOT_WRITTEN = dict.fromkeys(("attention.head_count_kv", "rope.dimension_count", "rope.freq_base"))


def mamba(config: Any) -> dict[str, Any]:
    """Return the keys of Mamba alone."""
    return {
        **NOT_WRITTEN,
        "context_length": 1 << 20,
        "feed_forward_length": 0,
        "attention.head_count": 0,
        "ssm.conv_kernel": config.conv_kernel,
        "ssm.state_size": config.state_size,
        "ssm.inner_size": config.intermediate_size,
        "ssm.time_step_rank": config.time_step_rank,
        "ssm.dt_b_c_rms": config.model_type == "falcon_mamba",
    }


def mamba2(config: Any) -> dict[str, Any]:
    """Return the keys of Mamba-2 alone."""
    inner = config.expand * config.hidden_size
    own = {"ssm.inner_size": inner, "ssm.time_step_rank": inner // config.head_dim, "ssm.group_count": config.n_groups}
    others = {"ssm.conv_kernel": config.conv_kernel, "ssm.state_size": config.state_size, "attention.key_length": None}
    beginning = {"context_length": 1 << 20, "feed_forward_length": 0, "attention.head_count": 0}
    return {**NOT_WRITTEN, **beginning, **own, **others}


def kv_heads(config: Any, attending: list[bool]) -> dict[str, Any]:
    """Return the KV heads of each layer, 0 where there is no attention."""
    return {"attention.head_count_kv": [config.num_key_value_heads if attends else 0 for attends in attending]}


def jamba(config: Any) -> dict[str, Any]:
    """Return Jamba's keys."""
    kinds = [layer % config.attn_layer_period == config.attn_layer_offset for layer in range(config.num_hidden_layers)]
    return {
        **NOT_WRITTEN,
        **kv_heads(config, kinds),
        "expert_count": config.num_experts,
        "expert_used_count": config.num_experts_per_tok,
        "ssm.conv_kernel": config.mamba_d_conv,
        "ssm.state_size": config.mamba_d_state,
        "ssm.inner_size": config.mamba_expand * config.hidden_size,
        "ssm.time_step_rank": config.mamba_dt_rank,
    }


def lfm2(config: Any) -> dict[str, Any]:
    """Return LFM2's keys."""
    experts = getattr(config, "num_experts", 0)
    width = config.intermediate_size
    if getattr(config, "block_auto_adjust_ff_dim", False):
        multiple, wide = config.block_multiple_of, int(config.block_ffn_dim_multiplier * int(2 * width / 3))
        width = -(-wide // multiple) * multiple
    mixture = {
        "expert_count": experts,
        "expert_used_count": getattr(config, "num_experts_per_tok", 0),
        "expert_feed_forward_length": getattr(config, "moe_intermediate_size", 0),
        "leading_dense_block_count": getattr(config, "num_dense_layers", 0),
        "expert_gating_func": 2,
    }
    return {
        "rope.dimension_count": None,
        **kv_heads(config, [kind == "full_attention" for kind in config.layer_types]),
        "feed_forward_length": width,
        "shortconv.l_cache": config.conv_L_cache,
        **(mixture if experts else {}),
    }


def state_space(config: Any) -> dict[str, Any]:
    """Return the keys of Mamba-2 in a hybrid, under Bamba's names or Nemotron-H's."""

    def first(*names: str) -> Any:
        return next(getattr(config, name) for name in names if hasattr(config, name))

    heads, size = first("mamba_n_heads", "mamba_num_heads"), first("mamba_d_head", "mamba_head_dim")
    return {
        "ssm.conv_kernel": first("mamba_d_conv", "conv_kernel"),
        "ssm.state_size": first("mamba_d_state", "ssm_state_size"),
        "ssm.inner_size": heads * size,
        "ssm.time_step_rank": heads,
        "ssm.group_count": first("mamba_n_groups", "n_groups"),
    }


def granite_hybrid(config: Any) -> dict[str, Any]:
    """Return Granite 4's keys."""
    mixture = {
        "expert_count": config.num_local_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_shared_feed_forward_length": config.shared_intermediate_size,
    }
    attending = [kind == "full_attention" for kind in config.layer_types]
    length = {} if all(attending) else {"context_length": 1 << 20}
    return {
        **state_space(config),
        **granite(config),
        **mixture,
        **kv_heads(config, attending),
        **length,
        "rope.scaling.finetuned": all(attending),
    }


def bamba(config: Any) -> dict[str, Any]:
    """Return Bamba's keys."""
    attending = [layer in config.attn_layer_indices for layer in range(config.num_hidden_layers)]
    return {**state_space(config), **kv_heads(config, attending), "rope.scaling.finetuned": True}


def nemotron_h(config: Any) -> dict[str, Any]:
    """Return Nemotron-H's keys."""
    kinds = config.layers_block_type
    keys = {
        **state_space(config),
        **kv_heads(config, [kind == "full_attention" for kind in kinds]),
        "context_length": 1 << 20,
        "rope.scaling.finetuned": False,
        "attention.layer_norm_epsilon": config.layer_norm_epsilon,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "rope.dimension_count": config.hidden_size // config.num_attention_heads,
        "rope.freq_base": None,
    }
    if "moe" not in kinds:
        return {**keys, "feed_forward_length": [config.intermediate_size if kind == "mlp" else 0 for kind in kinds]}
    latent = {} if config.moe_latent_size is None else {"moe_latent_size": config.moe_latent_size}
    return {
        **keys,
        **latent,
        "feed_forward_length": [config.moe_intermediate_size if kind == "moe" else 0 for kind in kinds],
        "expert_count": config.n_routed_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "expert_shared_feed_forward_length": config.moe_shared_expert_intermediate_size,
        "expert_shared_count": config.n_shared_experts,
        "expert_weights_norm": config.norm_topk_prob,
        "expert_weights_scale": float(config.routed_scaling_factor),
        "expert_group_count": config.n_group,
        "expert_group_used_count": config.topk_group,
    }


def falcon_h1(config: Any) -> dict[str, Any]:
    """Return Falcon-H1's keys."""
    return {**state_space(config), "rope.dimension_count": None}


def kimi(config: Any) -> dict[str, Any]:
    """Return Kimi Linear's keys."""
    return {
        **sizes(config),
        "attention.head_count_kv": [1 if kind == "full_attention" else 0 for kind in config.layer_types],
        "attention.value_length": None,
        "rope.freq_base": None,
        "kda.head_dim": config.linear_head_dim,
        "ssm.conv_kernel": config.linear_conv_kernel_dim,
        "expert_count": config.num_local_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_shared_count": config.n_shared_experts,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "expert_group_used_count": config.topk_group,
        "expert_weights_scale": config.routed_scaling_factor,
        "expert_gating_func": 2,
        "leading_dense_block_count": 1,
    }


def delta_net(config: Any) -> dict[str, Any]:
    """Return the keys of Qwen3-Next and Qwen3.5."""
    shared = getattr(config, "shared_expert_intermediate_size", 0)
    return {
        "ssm.conv_kernel": config.linear_conv_kernel_dim,
        "ssm.state_size": config.linear_key_head_dim,
        "ssm.group_count": config.linear_num_key_heads,
        "ssm.time_step_rank": config.linear_num_value_heads,
        "ssm.inner_size": config.linear_num_value_heads * config.linear_value_head_dim,
        "full_attention_interval": 3,
        **({**experts(config), "expert_shared_feed_forward_length": shared} if shared else {}),
    }


def with_prediction(config: Any) -> dict[str, Any]:
    """Return the keys of a model with a layer behind its own that predicts one more token."""
    return {**delta_net(config), "block_count": config.num_hidden_layers + 1, "nextn_predict_layers": 1}


def predicting(config: Any) -> dict[str, np.ndarray]:
    """One of the tensors of that layer."""
    return {f"blk.{config.num_hidden_layers}.nextn.eh_proj.weight": np.ones((64, 128), np.float32)}


MAMBA: dict[str, Any] = {
    "num_hidden_layers": 2,
    "state_size": 6,
    "conv_kernel": 3,
    "layer_norm_epsilon": 0.01,
    "intermediate_size": 128,
    "num_attention_heads": ...,
    "num_key_value_heads": ...,
    "max_position_embeddings": ...,
    "pad_token_id": 0,
}
MAMBA2: dict[str, Any] = {
    "mamba_n_heads": 16,
    "mamba_n_groups": 2,
    "mamba_d_head": 8,
    "mamba_d_state": 12,
    "mamba_d_conv": 3,
    "rms_norm_eps": 0.01,
    "pad_token_id": 0,
}
DELTA: dict[str, Any] = {
    "num_hidden_layers": 4,
    "full_attention_interval": 3,
    "head_dim": 16,
    "rms_norm_eps": 0.01,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 3,
    "pad_token_id": 0,
    "rope_parameters": {"rope_type": "default", "rope_theta": 300.0, "partial_rotary_factor": 0.5},
}
EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
}
NEMOTRON: dict[str, Any] = {
    "num_hidden_layers": None,
    "mamba_num_heads": 16,
    "mamba_head_dim": 8,
    "n_groups": 2,
    "ssm_state_size": 12,
    "conv_kernel": 3,
    "head_dim": 16,
    "layer_norm_epsilon": 0.01,
    "pad_token_id": 0,
}
LFM2: dict[str, Any] = {
    "layer_types": ["conv", "full_attention", "conv"],
    "conv_L_cache": 4,
    "norm_eps": 0.01,
    "pad_token_id": 0,
}

HYBRID: dict[str, Case] = {
    "mamba": Case("Mamba", {**MAMBA, "time_step_rank": 7}, mamba, stated),
    "mamba, falcon": Case("FalconMamba", {**MAMBA, "time_step_rank": 7, "tie_word_embeddings": False}, mamba, stated),
    "mamba2": Case(
        "Mamba2", {**MAMBA, "num_heads": 16, "head_dim": 8, "n_groups": 2, "intermediate_size": ...}, mamba2, in_heads
    ),
    "jamba": Case(
        "Jamba",
        {
            "num_hidden_layers": 5,
            "attn_layer_period": 3,
            "attn_layer_offset": 1,
            "expert_layer_period": 2,
            "expert_layer_offset": 0,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "mamba_d_state": 6,
            "mamba_d_conv": 3,
            "mamba_dt_rank": 7,
            "rms_norm_eps": 0.01,
            "pad_token_id": 0,
        },
        jamba,
        stated,
    ),
    "jamba, dense": Case(
        "Jamba",
        {
            "num_hidden_layers": 2,
            "attn_layer_period": 8,
            "attn_layer_offset": 1,
            "num_experts": 1,
            "mamba_d_state": 6,
            "pad_token_id": 0,
        },
        jamba,
        stated,
    ),
    "lfm2": Case(
        "Lfm2",
        {**LFM2, "block_auto_adjust_ff_dim": True, "block_multiple_of": 22, "block_ffn_dim_multiplier": 1.3},
        lfm2,
        stated,
    ),
    "lfm2moe": Case(
        "Lfm2Moe",
        {**LFM2, "num_dense_layers": 1, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
        lfm2,
        stated,
    ),
    "granitehybrid": Case(
        "GraniteMoeHybrid",
        {
            **MAMBA2,
            **SCALES,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "shared_intermediate_size": 48,
            "position_embedding_type": "nope",
        },
        granite_hybrid,
        of_granite,
    ),
    "granitehybrid, dense": Case(
        "GraniteMoeHybrid",
        {
            **MAMBA2,
            **SCALES,
            "mamba_n_groups": 1,
            "num_hidden_layers": 2,
            "layer_types": ["full_attention", "linear_attention"],
            "num_local_experts": 0,
            "num_experts_per_tok": 0,
            "shared_intermediate_size": 96,
            "position_embedding_type": "nope",
        },
        granite_hybrid,
        of_granite,
    ),
    "granitehybrid, bamba": Case(
        "Bamba",
        {**MAMBA2, "attn_layer_indices": [1], "attn_rotary_emb": 4, "partial_rotary_factor": 0.5},
        bamba,
        of_granite,
    ),
    "granite, without states": Case(
        "GraniteMoeHybrid",
        {
            **SCALES,
            "pad_token_id": 0,
            "layer_types": ["full_attention"] * 3,
            "num_local_experts": 0,
            "num_experts_per_tok": 0,
            "shared_intermediate_size": 96,
            "position_embedding_type": "rope",
        },
        granite_hybrid,
        of_granite,
    ),
    "granitemoe, without states": Case(
        "GraniteMoeHybrid",
        {
            **SCALES,
            "pad_token_id": 0,
            "layer_types": ["full_attention"] * 3,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "shared_intermediate_size": 48,
            "position_embedding_type": "rope",
        },
        granite_hybrid,
        of_granite,
    ),
    "nemotron_h": Case(
        "NemotronH",
        {**NEMOTRON, "layers_block_type": ["mlp", "linear_attention", "full_attention", "mlp"]},
        nemotron_h,
        in_heads,
    ),
    "nemotron_h_moe": Case(
        "NemotronH",
        {
            **NEMOTRON,
            "layers_block_type": ["moe", "linear_attention", "full_attention", "moe"],
            "n_routed_experts": 6,
            "num_experts_per_tok": 2,
            "n_group": 3,
            "topk_group": 2,
            "moe_intermediate_size": 40,
            "moe_shared_expert_intermediate_size": 48,
            "routed_scaling_factor": 1.7,
            "norm_topk_prob": True,
        },
        nemotron_h,
        in_heads,
    ),
    "nemotron_h_moe, latent": Case(
        "NemotronH",
        {
            **NEMOTRON,
            "layers_block_type": ["linear_attention", "moe", "full_attention"],
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 40,
            "moe_shared_expert_intermediate_size": 48,
            "moe_latent_size": 24,
            "norm_topk_prob": False,
        },
        nemotron_h,
        in_heads,
    ),
    "falcon-h1": Case(
        "FalconH1",
        {
            **MAMBA2,
            "mamba_d_ssm": 128,
            "head_dim": 12,
            "tie_word_embeddings": False,
            "lm_head_multiplier": 0.7,
            "embedding_multiplier": 1.3,
            "mlp_multipliers": [1.4, 0.8],
            "key_multiplier": 0.6,
            "attention_out_multiplier": 1.2,
            "attention_in_multiplier": 0.9,
            "ssm_multipliers": [0.8, 1.2, 0.7, 1.3, 0.9],
            "ssm_in_multiplier": 1.1,
            "ssm_out_multiplier": 0.7,
        },
        falcon_h1,
        of_falcon_h1,
    ),
    "qwen3next": Case(
        "Qwen3Next", {**DELTA, **EXPERTS, "decoder_sparse_step": 1, "norm_topk_prob": True}, delta_net, of_delta_net
    ),
    "qwen35": Case("Qwen3_5", DELTA, with_prediction, of_delta_net, predicting),
    "qwen35, as many": Case(
        "Qwen3_5", {**DELTA, "linear_num_value_heads": 2, "tie_word_embeddings": True}, delta_net, of_delta_net
    ),
    "qwen35moe": Case("Qwen3_5Moe", {**DELTA, **EXPERTS, "linear_num_key_heads": 1}, delta_net, of_delta_net),
    "kimi-linear": Case(
        "KimiLinear",
        {
            "num_key_value_heads": 8,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "linear_num_heads": 8,
            "linear_head_dim": 16,
            "linear_conv_kernel_dim": 3,
            "kv_lora_rank": 32,
            "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 8,
            "v_head_dim": 24,
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "n_shared_experts": 2,
            "routed_scaling_factor": 1.7,
            "rms_norm_eps": 0.01,
            "pad_token_id": 0,
        },
        kimi,
        of_kimi,
    ),
}
