"""GGUF files of mixtures of experts with plain attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from octavo_engine.model.gguf.architecture import GGUFArchitecture
from octavo_engine.model.gguf.config_fields import (
    experts_fields,
    granite_with_rope,
    layer_types,
    phi3_fields,
    router_fields,
    router_scores,
    window_field,
)
from octavo_engine.model.gguf.header import Header
from octavo_engine.model.gguf.rope import rope_parameters
from octavo_engine.model.gguf.spec_changes import llama_names, norms_as_stored, numbered_experts, of_gpt_oss


def _mixtral_fields(header: Header) -> dict[str, Any]:
    """Return Mixtral's fields."""
    return {**experts_fields(header), "sliding_window": None}


def _qwen2_moe_fields(header: Header) -> dict[str, Any]:
    """Return the fields of Qwen 2's mixtures of experts."""
    shared = header.integer("expert_shared_feed_forward_length")
    return {**experts_fields(header), "shared_expert_intermediate_size": shared, "norm_topk_prob": False}


def _qwen3_moe_fields(header: Header) -> dict[str, Any]:
    """Return the fields of Qwen 3's mixtures of experts."""
    return {**experts_fields(header), "norm_topk_prob": True}


def _granite_moe_fields(header: Header) -> dict[str, Any]:
    """Return the fields of Granite's mixtures of experts."""
    shared = header.integer("expert_shared_feed_forward_length", 0, default=0)
    return {**granite_with_rope(header), **experts_fields(header), "shared_intermediate_size": shared}


def _deepseek_fields(header: Header) -> dict[str, Any]:
    """Return the fields of DeepSeek's first mixture."""
    shared = header.integer("expert_shared_count", 0, default=0)
    dense = header.integer("leading_dense_block_count", 0, default=0)
    return {
        **experts_fields(header),
        "n_routed_experts": header.integer("expert_count"),
        "n_shared_experts": shared,
        "first_k_dense_replace": dense,
    }


def _dots1_fields(header: Header) -> dict[str, Any]:
    """Return the fields of dots.llm1, whose files state no window."""
    return {**router_fields(header, "sigmoid"), "sliding_window": None}


def _minimax_m2_fields(header: Header) -> dict[str, Any]:
    """Return MiniMax M2's fields."""
    router_scores(header, "sigmoid")
    return {**experts_fields(header), "intermediate_size": header.integer("expert_feed_forward_length")}


def _hunyuan_moe_fields(header: Header) -> dict[str, Any]:
    """Return the fields of Hunyuan's mixtures of experts."""
    router_scores(header, "softmax")
    return {**experts_fields(header), "moe_topk": header.integer("expert_used_count")}


def _ernie_moe_fields(header: Header) -> dict[str, Any]:
    """Return the fields of ERNIE's mixtures of experts."""
    router_scores(header, "softmax")
    names = {
        "moe_num_experts": "expert_count",
        "moe_k": "expert_used_count",
        "moe_intermediate_size": "expert_feed_forward_length",
        "moe_layer_interval": "interleave_moe_layer_step",
    }
    return {
        **{ours: header.integer(theirs) for ours, theirs in names.items()},
        "moe_num_shared_experts": header.integer("expert_shared_count", 0, default=0),
        "moe_layer_start_index": header.integer("leading_dense_block_count", 0),
    }


def _bailing_moe_fields(header: Header) -> dict[str, Any]:
    """Return the fields of Ling and Ring 1; the converter puts what `norm_head` does into the head's weights."""
    return {
        **experts_fields(header),
        "first_k_dense_replace": header.integer("leading_dense_block_count", 0, default=0),
        "norm_topk_prob": header.fields.boolean(header.key("expert_weights_norm"), False),
        "num_shared_experts": header.integer("expert_shared_count", 0),
        "use_qkv_bias": header.stored("attn_q.bias"),
    }


def _bailing_moe2_fields(header: Header) -> dict[str, Any]:
    """Return the fields of Ling 2 and Ring 2; tensors say how wide the shared expert is."""
    fields = router_fields(header, "sigmoid")
    gate = header.file.tensors.get(f"blk.{fields['first_k_dense_replace']}.ffn_gate_shexp.weight")
    return {
        **fields,
        "score_function": fields["scoring_func"],
        "num_shared_experts": 0 if gate is None else 1,
        "moe_shared_expert_intermediate_size": 1 if gate is None else gate.shape[0],
        "use_qk_norm": header.stored("attn_q_norm.weight"),
        "use_qkv_bias": header.stored("attn_qkv.bias"),
    }


def _afmoe_fields(header: Header) -> dict[str, Any]:
    """Return the fields of Arcee's Trinity; ModelLoadError for weights of experts that do not sum to 1."""
    router_scores(header, "sigmoid")
    if not header.fields.boolean(name := header.key("expert_weights_norm"), False):
        raise header.fields.wrong(name, header.fields.values.get(name), "is not supported, only true")
    return {
        **experts_fields(header),
        "sliding_window": header.integer("attention.sliding_window", 1, 1 << 30),
        **layer_types(header, 4),
        "num_shared_experts": header.integer("expert_shared_count", 0),
        "num_dense_layers": header.integer("leading_dense_block_count", 0, default=0),
        "route_scale": header.number("expert_weights_scale", default=1.0) or 1.0,
        "mup_enabled": True,
    }


def _exaone_moe_fields(header: Header) -> dict[str, Any]:
    """Return K-EXAONE's fields."""
    fields = {**router_fields(header, "sigmoid"), **window_field(header)}
    types = layer_types(header, 4) if fields["sliding_window"] else {}
    return {**fields, **types, "num_shared_experts": fields["n_shared_experts"]}


def _mimo2_fields(header: Header) -> dict[str, Any]:
    """Return the fields of MiMo V2 Flash, whose layers with a window have twice as many KV heads as the others."""
    types, heads = layer_types(header, 6)["layer_types"], header.each_layer(name := "attention.head_count_kv")
    plain = min(heads)
    if any(count != plain * (1 + (kind == "sliding_attention")) for kind, count in zip(types, heads, strict=False)):
        raise header.fields.wrong(header.key(name), list(heads), "is not twice as many in layers with a window")
    rope, with_experts = rope_parameters(header), header.layers_with("ffn_gate_inp.weight")
    base = header.number("rope.freq_base_swa", default=rope["rope_theta"])
    return {
        **experts_fields(header),
        **window_field(header),
        "layer_types": types,
        "norm_topk_prob": True,
        "mlp_layer_types": ["sparse" if at in with_experts else "dense" for at in range(len(types))],
        "n_routed_experts": header.integer("expert_count"),
        "num_key_value_heads": plain,
        "v_head_dim": header.integer("attention.value_length"),
        "attention_value_scale": header.number("attention.value_scale", default=1.0),
        "rope_parameters": {"full_attention": rope, "sliding_attention": {"rope_type": "default", "rope_theta": base}},
    }


def _dbrx_fields(header: Header) -> dict[str, Any]:
    """Return DBRX's fields."""
    return {
        "attn_config": {
            "kv_n_heads": header.integer("attention.head_count_kv"),
            "rope_theta": header.number("rope.freq_base", default=10000.0),
            **header.given({"clip_qkv": "attention.clamp_kqv"}),
        },
        "ffn_config": {
            "ffn_hidden_size": header.integer("feed_forward_length"),
            "moe_num_experts": header.integer("expert_count"),
            "moe_top_k": header.integer("expert_used_count"),
        },
    }


def _glm4_moe_fields(header: Header) -> dict[str, Any]:
    """Return the fields of GLM-4.5."""
    return {**router_fields(header, "sigmoid"), "use_qk_norm": header.stored("attn_q_norm.weight")}


def _gpt_oss_fields(header: Header) -> dict[str, Any]:
    """Return gpt-oss's fields."""
    width = header.integer("expert_feed_forward_length")
    window = header.integer("attention.sliding_window")
    sizes = {"intermediate_size": width, "sliding_window": window}
    return {**experts_fields(header), **sizes, **layer_types(header, 2)}


def _phimoe_fields(header: Header) -> dict[str, Any]:
    """Return the fields of Phi-3.5-MoE, whose router is the same in all published models."""
    return {**phi3_fields(header), **experts_fields(header), "lm_head_bias": "output.bias" in header.file.tensors}


def _step35_fields(header: Header) -> dict[str, Any]:
    """Return Step 3.5's fields; llama.cpp has as a constant that layers without a window rotate half of each head."""
    router_scores(header, "sigmoid")
    if not header.fields.boolean(name := header.key("expert_weights_norm"), False):
        raise header.fields.wrong(name, header.fields.values.get(name), "is not supported, only true")
    types, full = layer_types(header, None)["layer_types"], "full_attention"
    heads, rope = _heads_of_kinds(header, types), rope_parameters(header)
    if "factors" in rope:
        rope["factors"] = rope["factors"][: len(rope["factors"]) // 2]
    base = header.number("rope.freq_base_swa", default=rope["rope_theta"])
    with_experts = header.layers_with("ffn_gate_inp.weight")
    return {
        **experts_fields(header),
        **window_field(header),
        "layer_types": types,
        "mlp_layer_types": ["sparse" if at in with_experts else "dense" for at in range(len(types))],
        "num_attention_heads": heads[full],
        "num_sliding_attention_heads": heads["sliding_attention"],
        "num_key_value_heads": header.of_layers("attention.head_count_kv"),
        "n_routed_experts": header.integer("expert_count"),
        "share_expert_dim": header.integer("expert_shared_feed_forward_length"),
        "moe_router_scaling_factor": header.number("expert_weights_scale", default=1.0),
        "swiglu_limits": _of_own_layers(header, "swiglu_clamp_exp"),
        "swiglu_limits_shared": _of_own_layers(header, "swiglu_clamp_shexp"),
        "rope_parameters": {
            full: {**rope, "partial_rotary_factor": 0.5},
            "sliding_attention": {"rope_type": "default", "rope_theta": base, "partial_rotary_factor": 1.0},
        },
    }


def _cohere2_moe_fields(header: Header) -> dict[str, Any]:
    """Return the fields of Cohere's mixtures; in llama.cpp all dense layers at the start rotate."""
    return {
        **experts_fields(header),
        **layer_types(header, None),
        "intermediate_size": header.integer("expert_feed_forward_length"),
        "prefix_dense_intermediate_size": header.integer("feed_forward_length"),
        "prefix_dense_sliding_window_pattern": 1,
        "first_k_dense_replace": header.integer("leading_dense_block_count", 0, default=0),
        "num_shared_experts": header.integer("expert_shared_count", 0, default=0),
        "expert_selection_fn": router_scores(header, "sigmoid", "softmax"),
        "norm_topk_prob": header.fields.boolean(header.key("expert_weights_norm"), False),
        "sliding_window": header.integer("attention.sliding_window"),
        "logit_scale": header.number("logit_scale"),
        "attention_bias": False,
    }


def _heads_of_kinds(header: Header, types: Sequence[str]) -> dict[str, int]:
    """Return the number of heads of each type of layers; ModelLoadError if layers of one type differ."""
    counts = header.each_layer(name := "attention.head_count")
    heads = dict.fromkeys(("full_attention", "sliding_attention"), counts[0])
    heads |= dict(zip(types, counts, strict=False))  # there are more counts than layers if some predict further tokens
    if any(heads[kind] != count for kind, count in zip(types, counts, strict=False)):
        raise header.fields.wrong(header.key(name), list(counts), "differs in layers of one type")
    return heads


def _of_own_layers(header: Header, name: str) -> list[Any] | None:
    """Return each layer's number, without those of layers that predict further tokens; None: the file has none.

    As in llama.cpp, a header may have one number for all layers.
    """
    found, count = header.fields.values.get(header.key(name)), header.num_layers
    if isinstance(found, list):
        return found[:count]
    return None if found is None else [found] * count


_MAVERICKS_EXPERTS = 128


def _llama4_fields(header: Header) -> dict[str, Any]:
    """Return Llama 4's fields; llama.cpp has as constants the chunks, which queries grow and how, and that Maverick,
    which it knows by its number of experts, has no norms of query and key."""
    if header.has(name := "attention.sliding_window"):
        raise header.fields.wrong(header.key(name), header.fields.values[header.key(name)], "is not supported")
    return {
        **experts_fields(header),
        "intermediate_size": header.integer("expert_feed_forward_length"),
        "intermediate_size_mlp": header.integer("feed_forward_length"),
        "interleave_moe_layer_step": header.integer("interleave_moe_layer_step"),
        "use_qk_norm": header.integer("expert_count") != _MAVERICKS_EXPERTS,
    }


EXPERTS = (
    GGUFArchitecture(
        name="llama", model_class="MixtralForCausalLM", experts=True, read=_mixtral_fields, interleaves_rope=True
    ),
    GGUFArchitecture(name="qwen2moe", model_class="Qwen2MoeForCausalLM", experts=True, read=_qwen2_moe_fields),
    GGUFArchitecture(name="qwen3moe", model_class="Qwen3MoeForCausalLM", experts=True, read=_qwen3_moe_fields),
    GGUFArchitecture(
        name="granitemoe",
        model_class="GraniteMoeSharedForCausalLM",
        other_classes=("GraniteMoeForCausalLM",),
        experts=True,
        read=_granite_moe_fields,
        change=numbered_experts,
        interleaves_rope=True,
    ),
    GGUFArchitecture(name="olmoe", model_class="OlmoeForCausalLM", experts=True, read=experts_fields),
    GGUFArchitecture(
        name="deepseek",
        model_class="DeepseekForCausalLM",
        experts=True,
        read=_deepseek_fields,
        interleaves_rope=True,
    ),
    GGUFArchitecture(
        name="glm4moe",
        model_class="Glm4MoeForCausalLM",
        other_classes=("SolarOpenForCausalLM",),
        experts=True,
        read=_glm4_moe_fields,
    ),
    GGUFArchitecture(
        name="qwen3vlmoe",
        model_class="Qwen3VLMoeTextForCausalLM",
        experts=True,
        read=experts_fields,
        change=numbered_experts,
    ),
    GGUFArchitecture(
        name="llama4", model_class="Llama4ForCausalLM", experts=True, read=_llama4_fields, change=numbered_experts
    ),
    GGUFArchitecture(name="dots1", model_class="Dots1ForCausalLM", experts=True, read=_dots1_fields),
    GGUFArchitecture(name="minimax-m2", model_class="MiniMaxM2ForCausalLM", experts=True, read=_minimax_m2_fields),
    GGUFArchitecture(name="hunyuan-moe", model_class="HunYuanMoEV1ForCausalLM", experts=True, read=_hunyuan_moe_fields),
    GGUFArchitecture(name="ernie4_5-moe", model_class="Ernie4_5_MoeForCausalLM", experts=True, read=_ernie_moe_fields),
    GGUFArchitecture(
        name="bailingmoe2", model_class="BailingMoeV2ForCausalLM", experts=True, read=_bailing_moe2_fields
    ),
    GGUFArchitecture(
        name="bailingmoe",
        model_class="BailingMoeForCausalLM",
        experts=True,
        read=_bailing_moe_fields,
        change=llama_names,
        interleaves_rope=True,
    ),
    GGUFArchitecture(name="afmoe", model_class="AfmoeForCausalLM", experts=True, read=_afmoe_fields),
    GGUFArchitecture(
        name="mimo2", model_class="MiMoV2FlashForCausalLM", experts=True, read=_mimo2_fields, layers_differ=True
    ),
    GGUFArchitecture(name="exaone-moe", model_class="ExaoneMoeForCausalLM", experts=True, read=_exaone_moe_fields),
    GGUFArchitecture(
        name="phimoe",
        model_class="PhimoeForCausalLM",
        other_classes=("PhiMoEForCausalLM",),
        experts=True,
        read=_phimoe_fields,
    ),
    GGUFArchitecture(
        name="step35",
        model_class="Step3p7TextForCausalLM",
        other_classes=("Step3p5ForCausalLM",),
        experts=True,
        read=_step35_fields,
        change=norms_as_stored,
        layers_differ=True,
    ),
    GGUFArchitecture(name="cohere2moe", model_class="Cohere2MoeForCausalLM", experts=True, read=_cohere2_moe_fields),
    GGUFArchitecture(
        name="dbrx", model_class="DbrxForCausalLM", experts=True, read=_dbrx_fields, change=numbered_experts
    ),
    GGUFArchitecture(
        name="gpt-oss", model_class="GptOssForCausalLM", experts=True, read=_gpt_oss_fields, change=of_gpt_oss
    ),
)
