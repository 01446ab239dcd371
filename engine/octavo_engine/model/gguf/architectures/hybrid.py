"""GGUF files of models with states: state space models, linear attention and short convolutions, alone or in hybrids.

A layer that the header gives 0 KV heads has no attention.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from octavo_engine.errors import ModelLoadError
from octavo_engine.model.checkpoint.names import TensorNames
from octavo_engine.model.gguf.architecture import GGUFArchitecture
from octavo_engine.model.gguf.architectures.latent import latent_fields
from octavo_engine.model.gguf.config_fields import experts_fields, granite_fields
from octavo_engine.model.gguf.header import Header
from octavo_engine.model.gguf.restored import STATE_DECAY, Restored, unpaired, untiled
from octavo_engine.model.gguf.spec_changes import norms_as_stored, numbered_experts, ungrouped_delta_net
from octavo_engine.model.spec import AttentionSpec, GatedDeltaNetSpec, ModelSpec


def _decay(_spec: ModelSpec) -> Mapping[str, Restored]:
    return STATE_DECAY


def _untiled_heads(spec: ModelSpec) -> Mapping[str, Restored]:
    """Return how Qwen3.5's value heads are read: the file has the first of each key head, then the second of each."""
    mixer = next((layer.mixer for layer in spec.layers if isinstance(layer.mixer, GatedDeltaNetSpec)), None)
    if mixer is None or mixer.num_heads == mixer.num_kv_heads:
        return STATE_DECAY
    groups, count = mixer.num_kv_heads, mixer.num_heads // mixer.num_kv_heads
    heads, values = untiled(groups, count, 1), untiled(groups, count, mixer.value_dim)
    behind = untiled(groups, count, mixer.value_dim, before=2 * groups * mixer.key_dim)
    rows = {"in_proj_z": values, "in_proj_b": heads, "in_proj_a": heads, "in_proj_qkv": behind, "conv1d": behind}
    return {
        **{f".linear_attn.{name}.weight": Restored(rows=order) for name, order in rows.items()},
        ".linear_attn.dt_bias": Restored(rows=heads),
        ".linear_attn.out_proj.weight": Restored(columns=values),
        ".A_log": replace(STATE_DECAY[".A_log"], rows=heads),
    }


def _unpaired(spec: ModelSpec) -> Mapping[str, Restored]:
    """Return how Granite 4 and Bamba are read, which have rows of query and key as pairs over whole heads.

    The pairs are those of RoPE for a whole head, even if only a part of it rotates, or nothing.
    """
    mixer = next((layer.mixer for layer in spec.layers if isinstance(layer.mixer, AttentionSpec)), None)
    if mixer is None:
        return STATE_DECAY
    heads = {"q_proj": mixer.num_heads, "k_proj": mixer.num_kv_heads}
    rows = {name: Restored(rows=unpaired(count, mixer.head_dim)) for name, count in heads.items()}
    both = {f".{name}.{kind}": each for name, each in rows.items() for kind in ("weight", "bias")}
    return {**STATE_DECAY, **both}


def _state_space(header: Header) -> dict[str, Any]:
    """Return the fields of Mamba and Mamba-2, under the names of Bamba and Jamba."""
    inner, hidden = header.integer("ssm.inner_size"), header.integer("embedding_length")
    if inner % hidden:
        key = header.key("ssm.inner_size")
        raise header.fields.wrong(key, inner, f"is not a multiple of the hidden size {hidden}")
    return {
        "mamba_expand": inner // hidden,
        "mamba_d_state": header.integer("ssm.state_size"),
        "mamba_d_conv": header.integer("ssm.conv_kernel"),
        "mamba_conv_bias": bool(header.layers_with("ssm_conv1d.bias")),
        "mamba_proj_bias": bool(header.layers_with("ssm_in.bias")),
    }


def _mamba2(header: Header) -> dict[str, Any]:
    """Return the fields of Mamba-2 whose inner size is a multiple of the hidden size."""
    return {**_state_space(header), **_heads(header)}


def _heads(header: Header) -> dict[str, Any]:
    """Return Mamba-2's heads; their number is stored as the rank of time steps."""
    inner, heads = header.integer("ssm.inner_size"), header.integer("ssm.time_step_rank")
    if inner % heads:
        raise header.fields.wrong(header.key("ssm.time_step_rank"), heads, f"does not divide the inner size {inner}")
    return {
        "mamba_n_heads": heads,
        "mamba_d_head": inner // heads,
        "mamba_n_groups": header.integer("ssm.group_count"),
    }


def _mamba_fields(header: Header) -> dict[str, Any]:
    """Return Mamba's fields, or Falcon Mamba's, whose second epsilon no header states: it is 1e-6 in all its models."""
    falcon = header.fields.boolean(header.key("ssm.dt_b_c_rms"), False)
    return {
        **_state_space(header),
        "architectures": ["FalconMambaForCausalLM" if falcon else "MambaForCausalLM"],
        "intermediate_size": header.integer("ssm.inner_size"),
        "mamba_dt_rank": header.integer("ssm.time_step_rank"),
    }


def _kv_heads(header: Header) -> tuple[int, ...]:
    return header.each_layer("attention.head_count_kv", header.integer("attention.head_count"))


def _layer_types(header: Header, other: str) -> list[str]:
    """Return the type of each layer: `other` if it has no KV heads."""
    return ["full_attention" if heads else other for heads in _kv_heads(header)]


def _jamba_fields(header: Header) -> dict[str, Any]:
    """Return Jamba's fields; experts are in the layers that have a router."""
    attending = [layer for layer, heads in enumerate(_kv_heads(header)) if heads]
    return {
        **_state_space(header),
        **experts_fields(header),
        **_every(header, "attn_layer", attending, "attention.head_count_kv"),
        **_every(header, "expert_layer", header.layers_with("ffn_gate_inp.weight"), "expert_count"),
        "mamba_dt_rank": header.integer("ssm.time_step_rank"),
    }


def _every(header: Header, name: str, layers: Sequence[int], key: str) -> dict[str, Any]:
    """Return the period and the offset that select `layers`; ModelLoadError about `key` if none do."""
    count = header.integer("block_count")
    offset = layers[0] if layers else count
    period = layers[1] - offset if len(layers) > 1 else count + 1
    if list(layers) != [layer for layer in range(count) if layer % period == offset]:
        value = header.fields.values.get(header.key(key))
        raise header.fields.wrong(header.key(key), value, f"is not supported: {list(layers)} are not every n-th layer")
    return {f"{name}_period": period, f"{name}_offset": offset}


def _lfm2_fields(header: Header) -> dict[str, Any]:
    """Return LFM2's fields."""
    if header.integer("attention.sliding_window", 0, 1 << 30, default=0):
        window = header.integer("attention.sliding_window")
        raise header.fields.wrong(header.key("attention.sliding_window"), window, "is not supported in lfm2")
    return {
        "layer_types": _layer_types(header, "conv"),
        "conv_L_cache": header.integer("shortconv.l_cache"),
        "norm_eps": header.number("attention.layer_norm_rms_epsilon"),
        "block_auto_adjust_ff_dim": False,
    }


def _lfm2_moe_fields(header: Header) -> dict[str, Any]:
    """Return the fields of LFM2's mixtures of experts."""
    _sigmoid(header)
    return {
        **_lfm2_fields(header),
        **experts_fields(header),
        "num_dense_layers": header.integer("leading_dense_block_count", 0, default=0),
        "use_expert_bias": bool(header.layers_with("exp_probs_b.bias")),
        "routed_scaling_factor": header.number("expert_weights_scale", default=1.0),
    }


def _sigmoid(header: Header) -> None:
    """Raise ModelLoadError unless the scores of experts are sigmoids."""
    function = header.integer("expert_gating_func")
    if function != 2:
        raise header.fields.wrong(header.key("expert_gating_func"), function, "is not supported here, only 2 (sigmoid)")


def _granite_hybrid_fields(header: Header) -> dict[str, Any]:
    """Return Granite 4's fields. Its attention has no RoPE: files with RoPE are Bamba's."""
    if header.fields.boolean(header.key("rope.scaling.finetuned"), True):
        return _bamba_fields(header)
    shared = header.integer("expert_shared_feed_forward_length", 0, default=0)
    return {
        **_mamba2(header),
        **granite_fields(header),
        "layer_types": _layer_types(header, "linear_attention"),
        "num_local_experts": 0,
        "shared_intermediate_size": header.integer("feed_forward_length"),
        **(
            {**experts_fields(header), "shared_intermediate_size": shared}
            if header.integer("expert_count", 0, default=0)
            else {}
        ),
    }


def _bamba_fields(header: Header) -> dict[str, Any]:
    """Return Bamba's fields; how much of a head rotates has to be stated, since it is half of it by default."""
    rotated, (scaling, _) = header.integer("rope.dimension_count"), header.rope_scaling()
    if scaling != "none":
        raise header.fields.wrong(header.key("rope.scaling.type"), scaling, "is not supported in Bamba")
    size = header.integer("embedding_length") // header.integer("attention.head_count")
    rope = {"rope_theta": header.number("rope.freq_base", default=10000.0), "partial_rotary_factor": rotated / size}
    return {
        **_mamba2(header),
        "architectures": ["BambaForCausalLM"],
        "attn_layer_indices": [layer for layer, heads in enumerate(_kv_heads(header)) if heads],
        "attention_bias": bool(header.layers_with("attn_q.bias")),
        "rope_parameters": rope,
    }


def _one_mlp(spec: ModelSpec) -> ModelSpec:
    """Return `spec` with the names of a Llama's feed-forward in place of a shared expert's."""
    llama = TensorNames()
    return replace(spec, names=replace(spec.names, gate=llama.gate, up=llama.up, down=llama.down))


def _nemotron_h_fields(header: Header) -> dict[str, Any]:
    """Return Nemotron-H's fields: a layer is attention, a feed-forward, or Mamba-2 if it has neither.

    No header states the least time step: it is 0.001 in all its models.
    """
    widths = header.each_layer("feed_forward_length", 0)
    other = "moe" if header.has("expert_count") else "mlp"
    kinds = zip(_kv_heads(header), widths, strict=True)
    return {
        **_heads(header),
        "layers_block_type": ["full_attention" if h else other if w else "linear_attention" for h, w in kinds],
        "mamba_d_state": header.integer("ssm.state_size"),
        "mamba_d_conv": header.integer("ssm.conv_kernel"),
        "mamba_conv_bias": bool(header.layers_with("ssm_conv1d.bias")),
        "mamba_proj_bias": bool(header.layers_with("ssm_in.bias")),
        "mlp_bias": bool(header.layers_with("ffn_up.bias")),
    }


def _nemotron_h_moe_fields(header: Header) -> dict[str, Any]:
    """Return the fields of Nemotron 3's mixtures of experts."""
    latent = "moe_latent_size"
    return {
        **_nemotron_h_fields(header),
        **experts_fields(header),
        "n_routed_experts": header.integer("expert_count"),
        "moe_shared_expert_intermediate_size": header.integer("expert_shared_feed_forward_length"),
        "norm_topk_prob": header.fields.boolean(header.key("expert_weights_norm"), False),
        "routed_scaling_factor": header.number("expert_weights_scale", default=1.0),
        "n_group": header.integer("expert_group_count", default=1),
        "topk_group": header.integer("expert_group_used_count", default=1),
        **({latent: header.integer(latent)} if header.has(latent) else {}),
    }


def _falcon_h1_fields(header: Header) -> dict[str, Any]:
    """Return Falcon-H1's fields without its multipliers, which are in the file's weights.

    Not all of them can be, and no header has them: a tied head would have that of the embedding, a bias one of an
    input. Nor does a header state whether a norm of Mamba-2 comes before its gate.
    """
    for name in ("attn_q.bias", "ssm_norm.weight"):
        if header.stored(name):
            raise ModelLoadError(f"{header.fields.origin}: the tensor 'blk.0.{name}' is not supported in falcon-h1")
    if "output.weight" not in header.file.tensors:
        raise ModelLoadError(
            f"{header.fields.origin}: the tensor 'output.weight' is missing: a falcon-h1 file without it does not "
            "state by what the logits are multiplied; use the checkpoint of Hugging Face instead"
        )
    inner = header.integer("ssm.inner_size")
    return {
        **_heads(header),
        "mamba_d_ssm": inner,
        "mamba_d_state": header.integer("ssm.state_size"),
        "mamba_d_conv": header.integer("ssm.conv_kernel"),
        "mamba_conv_bias": header.stored("ssm_conv1d.bias"),
        "mamba_rms_norm": False,
    }


def _delta_net_fields(header: Header) -> dict[str, Any]:
    """Return the fields of Gated DeltaNet, in the layers that have the tensors of its state."""
    inner, heads = header.integer("ssm.inner_size"), header.integer("ssm.time_step_rank")
    linear = header.layers_with("ssm_a")
    return {
        "linear_num_value_heads": heads,
        "linear_num_key_heads": header.integer("ssm.group_count"),
        "linear_key_head_dim": header.integer("ssm.state_size"),
        "linear_value_head_dim": inner // heads,
        "linear_conv_kernel_dim": header.integer("ssm.conv_kernel"),
        "layer_types": [
            "linear_attention" if layer in linear else "full_attention" for layer in range(header.num_layers)
        ],
    }


def _qwen_moe_fields(header: Header) -> dict[str, Any]:
    """Return the fields of Qwen's mixtures of experts with Gated DeltaNet."""
    shared = header.integer("expert_shared_feed_forward_length")
    return {**_delta_net_fields(header), **experts_fields(header), "shared_expert_intermediate_size": shared}


def _qwen3_next(spec: ModelSpec) -> ModelSpec:
    return ungrouped_delta_net(norms_as_stored(spec))


def _kimi_linear_fields(header: Header) -> dict[str, Any]:
    """Return Kimi Linear's fields; Kimi Delta Attention has as many heads as latent attention."""
    _sigmoid(header)
    kept = header.integer("expert_group_used_count", default=1)
    if kept > 1:
        raise header.fields.wrong(header.key("expert_group_used_count"), kept, "needs the number of groups")
    return {
        **latent_fields(header),
        **experts_fields(header),
        "layer_types": _layer_types(header, "linear_attention"),
        "linear_num_heads": header.integer("attention.head_count"),
        "linear_head_dim": header.integer("kda.head_dim"),
        "linear_conv_kernel_dim": header.integer("ssm.conv_kernel"),
        "n_shared_experts": header.integer("expert_shared_count", 0, default=0),
        "first_k_dense_replace": header.integer("leading_dense_block_count", 0, default=0),
        "norm_topk_prob": True,
        "routed_scaling_factor": header.number("expert_weights_scale", default=1.0),
    }


HYBRID = (
    GGUFArchitecture(
        name="mamba",
        model_class="MambaForCausalLM",
        other_classes=("FalconMambaForCausalLM",),
        read=_mamba_fields,
        restored=_decay,
    ),
    GGUFArchitecture(name="mamba2", model_class="Mamba2ForCausalLM", read=_mamba2, restored=_decay),
    GGUFArchitecture(name="jamba", model_class="JambaForCausalLM", experts=True, read=_jamba_fields, restored=_decay),
    GGUFArchitecture(name="lfm2", model_class="Lfm2ForCausalLM", read=_lfm2_fields),
    GGUFArchitecture(name="lfm2moe", model_class="Lfm2MoeForCausalLM", experts=True, read=_lfm2_moe_fields),
    GGUFArchitecture(
        name="granitehybrid",
        model_class="GraniteMoeHybridForCausalLM",
        experts=True,
        read=_granite_hybrid_fields,
        change=numbered_experts,
        restored=_unpaired,
    ),
    GGUFArchitecture(
        name="granitehybrid",
        model_class="GraniteMoeHybridForCausalLM",
        other_classes=("BambaForCausalLM",),
        read=_granite_hybrid_fields,
        change=_one_mlp,
        restored=_unpaired,
    ),
    GGUFArchitecture(name="nemotron_h", model_class="NemotronHForCausalLM", read=_nemotron_h_fields, restored=_decay),
    GGUFArchitecture(
        name="nemotron_h_moe",
        model_class="NemotronHForCausalLM",
        experts=True,
        read=_nemotron_h_moe_fields,
        restored=_decay,
    ),
    GGUFArchitecture(
        name="falcon-h1",
        model_class="FalconH1ForCausalLM",
        read=_falcon_h1_fields,
        restored=_decay,
        scales_weights=True,
    ),
    GGUFArchitecture(
        name="qwen3next",
        model_class="Qwen3NextForCausalLM",
        experts=True,
        read=_qwen_moe_fields,
        change=_qwen3_next,
        restored=_decay,
    ),
    GGUFArchitecture(
        name="qwen35",
        model_class="Qwen3_5ForCausalLM",
        read=_delta_net_fields,
        change=norms_as_stored,
        restored=_untiled_heads,
    ),
    GGUFArchitecture(
        name="qwen35moe",
        model_class="Qwen3_5MoeForCausalLM",
        experts=True,
        read=_qwen_moe_fields,
        change=norms_as_stored,
        restored=_untiled_heads,
    ),
    GGUFArchitecture(
        name="kimi-linear",
        model_class="KimiLinearForCausalLM",
        experts=True,
        read=_kimi_linear_fields,
        restored=_decay,
    ),
)
