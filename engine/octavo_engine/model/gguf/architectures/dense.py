"""GGUF files of dense models with RMSNorm, and of Cohere's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from octavo_engine.errors import ModelLoadError
from octavo_engine.model.gguf.architecture import GGUFArchitecture
from octavo_engine.model.gguf.config_fields import (
    granite_with_rope,
    layer_types,
    phi3_fields,
    rms_epsilon,
    window_field,
)
from octavo_engine.model.gguf.header import Header
from octavo_engine.model.gguf.restored import Array
from octavo_engine.model.gguf.rope import rope_parameters
from octavo_engine.model.gguf.rows import TensorFile, dequantize_rows
from octavo_engine.model.gguf.spec_changes import llama_names


def _olmo_fields(header: Header) -> dict[str, Any]:
    """Return OLMo's fields."""
    return header.given({"clip_qkv": "attention.clamp_kqv"})


def _olmo2_fields(header: Header) -> dict[str, Any]:
    """Return the fields of OLMo 2, or of OLMo 3, which has windows: their layers have RoPE without scaling."""
    if window_field(header)["sliding_window"] is None:
        return {}
    full = rope_parameters(header)
    local = {"rope_theta": header.number("rope.freq_base_swa", default=full["rope_theta"]), "rope_type": "default"}
    return {
        "architectures": ["Olmo3ForCausalLM"],
        **window_field(header),
        **layer_types(header, 4),
        "rope_parameters": {"full_attention": full, "sliding_attention": local},
    }


def _exaone4_fields(header: Header) -> dict[str, Any]:
    """Return EXAONE 4's fields: layers without a window have no RoPE, if others have one."""
    window = window_field(header)
    return {**window, **layer_types(header, 4)} if window["sliding_window"] else window


def _mistral3_fields(header: Header) -> dict[str, Any]:
    """Return the fields of Ministral 3, or of Mistral 3, whose queries do not grow with their position."""
    scale, log_scale = "attention.temperature_scale", "rope.scaling.yarn_log_multiplier"
    growth, rope = header.number(scale, default=0.0), rope_parameters(header)
    if header.has(log_scale):  # `mscale` is not stated: 1 in both published formats, as is `mscale_all_dim`
        if header.number(log_scale) not in (0, 1):
            raise header.fields.wrong(header.key(log_scale), header.number(log_scale), "is not supported, only 0 and 1")
        rope |= {"mscale": 1.0, "mscale_all_dim": header.number(log_scale)}
    if not growth:
        return {"architectures": ["MistralForCausalLM"], "rope_parameters": rope}
    return {"rope_parameters": {**rope, "llama_4_scaling_beta": growth}}


def _apertus_activations(header: Header) -> dict[str, Array]:
    """Return what layers have learnt of xIELU, which files have as keys with a number for each layer, or for all."""
    made: dict[str, Array] = {}
    for name in ("alpha_n", "alpha_p", "beta", "eps"):
        values = header.fields.values.get(key := f"xielu.{name}")
        values = [values] * header.num_layers if isinstance(values, float) else values
        numbers = values if isinstance(values, list) and all(isinstance(each, float) for each in values) else []
        if len(numbers) != header.num_layers:
            raise header.fields.wrong(key, values, f"is not a number for each of {header.num_layers} layers")
        for layer, value in enumerate(numbers):
            made[f"model.layers.{layer}.mlp.act_fn.{name}"] = np.array([value], np.float32)
    return made


def _apertus_fields(header: Header) -> dict[str, Any]:
    """Return no fields of Apertus; ModelLoadError for a file without what layers have learnt."""
    _apertus_activations(header)
    return {}


def _qwen3_fields(header: Header) -> dict[str, Any]:
    """Return the fields of a reranker, whose file has the rows of the answers yes and no in place of the head.

    The score is how likely yes is of these two, the sigmoid of the difference of their logits: one class.
    """
    if "cls.output.weight" not in header.file.tensors:
        return {}
    labels = header.fields.values.get(key := header.key("classifier.output_labels"))
    if labels != ["yes", "no"]:
        raise header.fields.wrong(key, labels, "is not yes and no, as in Qwen3-Reranker; take the model's checkpoint")
    return {"architectures": ["Qwen3ForSequenceClassification"], "id2label": {"0": "yes"}}


def _qwen3_score(header: Header) -> dict[str, Array]:
    """Return the head of a reranker."""
    if (stored := header.file.tensors.get("cls.output.weight")) is None:
        return {}
    if len(stored.shape) != 2 or stored.shape[0] != 2:
        raise ModelLoadError(f"{header.fields.origin}: 'cls.output.weight' of shape {list(stored.shape)} has no 2 rows")
    yes, no = dequantize_rows(TensorFile(stored.path), stored, 0, 2)
    return {"score.weight": (yes - no)[None]}


def _minicpm_fields(header: Header) -> dict[str, Any]:
    """Return MiniCPM's fields; files of 2024 do not state its scales, which are then those of MiniCPM 1."""
    layers, hidden = header.integer("block_count"), header.integer("embedding_length")
    return {
        "scale_emb": header.number("embedding_scale", default=12.0),
        "scale_depth": header.number("residual_scale", default=1.4 / math.sqrt(layers)) * math.sqrt(layers),
        "dim_model_base": round(hidden / max(1e-6, header.number("logit_scale", default=hidden / 256))),
    }


def _internlm2_fields(header: Header) -> dict[str, Any]:
    """Return InternLM 2's fields."""
    return {"bias": header.stored("attn_q.bias")}


def _chatglm_fields(header: Header) -> dict[str, Any]:
    """Return the fields of GLM-4, or of ChatGLM 2 and 3 and GLM-4 in Zhipu's own format, with one tensor of query, key
    and value. The family says which `rope_ratio` is refused."""
    if not header.stored("attn_qkv.weight"):
        return {}
    ratio = header.number("rope.freq_base", default=10000.0) / 10000
    bias = header.stored("attn_qkv.bias")
    return {
        "architectures": ["ChatGLMModel"],
        "rope_ratio": ratio,
        "multi_query_attention": True,
        "add_qkv_bias": bias,
    }


def _qwen_fields(header: Header) -> dict[str, Any]:
    """Return Qwen 1's fields.

    Its code changes RoPE and scales queries beyond `seq_length` tokens, which the header does not state: at least 2048.
    """
    longest = min(2048, header.integer("context_length", 1, 1 << 30, default=2048))
    return {**rms_epsilon(header), "max_position_embeddings": longest}


def _xverse_fields(header: Header) -> dict[str, Any]:
    """Return XVERSE's fields; ModelLoadError for fewer KV heads, whose keys the converter permutes wrongly."""
    heads, kv_heads = header.integer("attention.head_count"), header.integer("attention.head_count_kv", 0, default=0)
    if kv_heads not in (0, heads):
        name = header.key("attention.head_count_kv")
        raise header.fields.wrong(name, kv_heads, f"is not supported, only as many as heads, {heads}")
    return {}


def _command_r_fields(header: Header) -> dict[str, Any]:
    """Return Command R's fields."""
    return {"logit_scale": header.number("logit_scale"), "use_qk_norm": header.stored("attn_q_norm.weight")}


def _cohere2_fields(header: Header) -> dict[str, Any]:
    """Return the fields of Command R7B and later ones."""
    window = header.integer("attention.sliding_window")
    scale = header.number("logit_scale")
    return {"logit_scale": scale, "sliding_window": window, **layer_types(header, 4), "attention_bias": False}


def _deci_fields(header: Header) -> dict[str, Any]:
    """Return Llama-Nemotron's fields: a layer without attention has no heads; ModelLoadError for linear attention."""
    heads, kv_heads = (header.each_layer(f"attention.{name}", 0) for name in ("head_count", "head_count_kv"))
    if any(each and not kv for each, kv in zip(heads, kv_heads, strict=True)):
        name = header.key("attention.head_count_kv")
        raise header.fields.wrong(name, list(kv_heads), "is not supported: layers with a linear instead of attention")
    hidden, widths = header.integer("embedding_length"), header.each_layer("feed_forward_length", 0)
    return {
        "block_configs": [
            {
                "attention": {"n_heads_in_group": each // max(1, kv), "no_op": not each},
                "ffn": {"ffn_mult": 1.5 * width / hidden, "no_op": not width},
            }
            for each, kv, width in zip(heads, kv_heads, widths, strict=True)
        ]
    }


DENSE = (
    GGUFArchitecture(
        name="llama", model_class="LlamaForCausalLM", other_classes=("MistralForCausalLM",), interleaves_rope=True
    ),
    GGUFArchitecture(name="qwen2", model_class="Qwen2ForCausalLM"),
    GGUFArchitecture(
        name="qwen3",
        model_class="Qwen3ForCausalLM",
        read=_qwen3_fields,
        made=_qwen3_score,
        made_of=("cls.output.weight",),
    ),
    GGUFArchitecture(name="phi3", model_class="Phi3ForCausalLM", read=phi3_fields),
    GGUFArchitecture(name="granite", model_class="GraniteForCausalLM", read=granite_with_rope, interleaves_rope=True),
    GGUFArchitecture(name="olmo", model_class="OlmoForCausalLM", read=_olmo_fields, interleaves_rope=True),
    GGUFArchitecture(
        name="olmo2", model_class="Olmo2ForCausalLM", other_classes=("Olmo3ForCausalLM",), read=_olmo2_fields
    ),
    GGUFArchitecture(name="command-r", model_class="CohereForCausalLM", read=_command_r_fields),
    GGUFArchitecture(name="cohere2", model_class="Cohere2ForCausalLM", read=_cohere2_fields),
    GGUFArchitecture(name="smollm3", model_class="SmolLM3ForCausalLM", interleaves_rope=True),
    GGUFArchitecture(name="apertus", model_class="ApertusForCausalLM", read=_apertus_fields, made=_apertus_activations),
    GGUFArchitecture(name="arcee", model_class="ArceeForCausalLM", interleaves_rope=True),
    GGUFArchitecture(name="seed_oss", model_class="SeedOssForCausalLM"),
    GGUFArchitecture(name="hunyuan-dense", model_class="HunYuanDenseV1ForCausalLM"),
    GGUFArchitecture(name="ernie4_5", model_class="Ernie4_5ForCausalLM"),
    GGUFArchitecture(name="glm4", model_class="Glm4ForCausalLM", rotates_neighbours=True),
    GGUFArchitecture(
        name="chatglm",
        model_class="GlmForCausalLM",
        other_classes=("ChatGLMModel", "ChatGLMForConditionalGeneration"),
        read=_chatglm_fields,
    ),
    GGUFArchitecture(
        name="mistral3", model_class="Ministral3ForCausalLM", read=_mistral3_fields, interleaves_rope=True
    ),
    GGUFArchitecture(name="exaone", model_class="ExaoneForCausalLM", read=rms_epsilon),
    GGUFArchitecture(name="exaone4", model_class="Exaone4ForCausalLM", read=_exaone4_fields),
    GGUFArchitecture(
        name="internlm2",
        model_class="InternLM2ForCausalLM",
        read=_internlm2_fields,
        change=llama_names,
        interleaves_rope=True,
    ),
    GGUFArchitecture(name="minicpm", model_class="MiniCPMForCausalLM", read=_minicpm_fields, interleaves_rope=True),
    GGUFArchitecture(name="pangu-embedded", model_class="PanguEmbeddedForCausalLM"),
    GGUFArchitecture(name="xverse", model_class="XverseForCausalLM", read=_xverse_fields, interleaves_rope=True),
    GGUFArchitecture(name="qwen", model_class="QWenLMHeadModel", read=_qwen_fields),
    GGUFArchitecture(name="qwen2vl", model_class="Qwen2ForCausalLM"),
    GGUFArchitecture(name="qwen3vl", model_class="Qwen3ForCausalLM"),
    GGUFArchitecture(
        name="deci", model_class="DeciLMForCausalLM", read=_deci_fields, interleaves_rope=True, layers_differ=True
    ),
)
