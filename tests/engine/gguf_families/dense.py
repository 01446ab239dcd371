"""The cases of `model/gguf/architectures/dense.py`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gguf_families.case import SCALES, YARN, Case, Tensors, granite, pattern, permuted, window, yarn


def joined() -> Callable[[Any, str, np.ndarray], Tensors]:
    """Query, key and value as one tensor."""
    parts: dict[str, list[np.ndarray]] = {"weight": [], "bias": []}

    def convert(config: Any, name: str, array: np.ndarray) -> Tensors:
        *_, number, _, part, ending = ["", "", *name.split(".")]
        if part not in ("q_proj", "k_proj", "v_proj"):
            yield name, array
            return
        parts[ending].append(array)
        if part == "v_proj":
            yield f"blk.{number}.attn_qkv.{ending}", np.concatenate(parts[ending])
            parts[ending].clear()

    return convert


def longrope(config: Any) -> dict[str, np.ndarray]:
    """Phi-3's divisors."""
    rope = config.rope_parameters
    return {f"rope_factors_{kind}.weight": np.array(rope[f"{kind}_factor"], np.float32) for kind in ("short", "long")}


LONG = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.5, 2.0, 3.0],
    "long_factor": [2.0, 3.0, 4.0, 8.0],
    "original_max_position_embeddings": 64,
}


def of_olmo3(config: Any) -> dict[str, Any]:
    """OLMo 3's windows, and YaRN with a factor of attention that the converter writes beside it."""
    full, local = (config.rope_parameters[f"{kind}_attention"] for kind in ("full", "sliding"))
    attention = {"rope.scaling.yarn_attn_factor": full["attention_factor"], "rope.freq_base_swa": local["rope_theta"]}
    return {**pattern(config), **yarn(config), **attention}


def of_ministral3(config: Any) -> dict[str, Any]:
    """Ministral 3's YaRN, and how its queries grow."""
    growth = {"attention.temperature_scale": config.rope_parameters["llama_4_scaling_beta"]}
    return {**yarn(config), **growth, "rope.scaling.yarn_log_multiplier": config.rope_parameters["mscale_all_dim"]}


def of_deci(config: Any) -> dict[str, Any]:
    """The sizes of layers: one without attention, and one without a feed-forward."""
    heads, kv_heads, width = config.num_attention_heads, config.num_key_value_heads, config.intermediate_size
    counts = {"attention.head_count": [heads, 0, heads], "attention.head_count_kv": [kv_heads, 0, kv_heads]}
    return {**counts, "feed_forward_length": [width, width, 0]}


def without_parts(config: Any, name: str, array: np.ndarray) -> Tensors:
    """Without what `of_deci` leaves out, which is made to do nothing in the model, too."""
    parts = ("layers.1.self_attn", "layers.1.input_layernorm", "layers.2.mlp", "layers.2.post_attention_layernorm")
    if any(part in name for part in parts):
        array[...] = 0
    else:
        yield from permuted(config, name, array)


def in_halves(config: Any, name: str, array: np.ndarray) -> Tensors:
    """The rotated rows of each head of query and key with even ones before odd ones."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    if (count := heads.get(name.split(".")[-2])) is not None:
        rows = array.reshape(count, config.head_dim, -1)
        rotated = config.head_dim // 2
        order = [*range(0, rotated, 2), *range(1, rotated, 2), *range(rotated, config.head_dim)]
        array = rows[:, order].reshape(array.shape)
    yield name, array


def of_minicpm(config: Any) -> dict[str, Any]:
    """MiniCPM's scales, without that of attention."""
    return {key: value for key, value in granite(config).items() if key != "attention.scale"}


def with_learnt(model: Any) -> None:
    """The parameters of Apertus's activations among its configuration, since files have them as keys."""
    activations = [layer.mlp.act_fn for layer in model.model.layers]
    model.config.learnt = {
        f"xielu.{name}": [getattr(each, name).item() for each in activations]
        for name in ("alpha_n", "alpha_p", "beta", "eps")
    }


THETA = {"rope_type": "default", "rope_theta": 500.0}
HALF = {**THETA, "partial_rotary_factor": 0.5}
GLM = {"rope_parameters": HALF, "attention_bias": True, "pad_token_id": 0, "rms_norm_eps": 0.01}
GROWING = {**YARN, "original_max_position_embeddings": 4, "mscale": 1.0, "mscale_all_dim": 1.0}
LOCAL = {"full_attention": {**YARN, "attention_factor": 0.1 * math.log(8) + 1}, "sliding_attention": THETA}
SECTIONS = {"rope.dimension_sections": [2, 1, 1, 0]}
"""The pairs that rotate by time, height and width, which are the same number for text."""


DENSE: dict[str, Case] = {
    "qwen3, yarn": Case("Qwen3", {"rope_parameters": YARN, "head_dim": 16}, yarn),
    "phi3": Case("Phi3", {"sliding_window": 4, "pad_token_id": 0}, window),
    "phi3, long": Case(
        "Phi3",
        {"rope_parameters": LONG, "original_max_position_embeddings": 64, "pad_token_id": 0},
        lambda config: {"rope.scaling.original_context_length": config.original_max_position_embeddings},
        vectors=longrope,
    ),
    "granite": Case("Granite", SCALES, granite, permuted),
    "olmo": Case("Olmo", {"clip_qkv": 0.5}, lambda c: {"attention.clamp_kqv": c.clip_qkv}, permuted, layer_norm=True),
    "olmo2": Case("Olmo2"),
    "command-r": Case("Cohere", keys=lambda config: {"logit_scale": config.logit_scale}, layer_norm=True),
    "command-r, norms": Case(
        "Cohere", {"use_qk_norm": True}, lambda config: {"logit_scale": config.logit_scale}, layer_norm=True
    ),
    "cohere2": Case(
        "Cohere2",
        {"sliding_window": 4, "layer_types": ["full_attention", "sliding_attention", "sliding_attention"]},
        lambda config: {"logit_scale": config.logit_scale, **pattern(config)},
        layer_norm=True,
    ),
    "smollm3": Case("SmolLM3", {"num_hidden_layers": 4, "pad_token_id": 0}, convert=permuted),
    "apertus": Case(
        "Apertus",
        {"rope_parameters": THETA},
        lambda config: config.learnt,
        lambda config, name, array: iter([] if ".act_fn." in name else [(name, array)]),
        prepare=with_learnt,
    ),
    "arcee": Case("Arcee", convert=permuted),
    "seed_oss": Case("SeedOss", {"head_dim": 16}),
    "hunyuan-dense": Case("HunYuanDenseV1", {"head_dim": 16}, lambda config: {"expert_count": 1}),
    "ernie4_5": Case("Ernie4_5", {"head_dim": 16}),
    "olmo2, windows": Case("Olmo3", {"sliding_window": 4, "num_hidden_layers": 4, "rope_parameters": LOCAL}, of_olmo3),
    "glm4": Case("Glm4", {**GLM, "head_dim": 16}),
    "chatglm": Case("Glm", {**GLM, "head_dim": 8}),
    "chatglm, one tensor": Case("Glm", {**GLM, "head_dim": 8}, convert=joined()),
    "mistral3": Case(
        "Ministral3",
        {"head_dim": 16, "rope_parameters": {**GROWING, "llama_4_scaling_beta": 0.3}},
        of_ministral3,
        permuted,
    ),
    "mistral3, plain": Case("Mistral", {"sliding_window": None, "head_dim": 16}, convert=permuted),
    "exaone": Case("Llama", {"rms_norm_eps": 0.01}, layer_norm=True),
    "exaone4": Case(
        "Exaone4", {"rope_parameters": THETA, "layer_types": ["full_attention"] * 3, "sliding_window": None}
    ),
    "exaone4, windows": Case(
        "Exaone4",
        {"sliding_window": 4, "num_hidden_layers": 4, "head_dim": 16},
        lambda config: {**pattern(config), "block_count": config.num_hidden_layers + 1, "nextn_predict_layers": 1},
    ),
    "internlm2": Case("Llama", {"attention_bias": True, "rope_parameters": THETA}, convert=permuted),
    "minicpm": Case("Granite", {**SCALES, "attention_multiplier": 8**-0.5}, of_minicpm, permuted),
    "pangu-embedded": Case("Llama", {"attention_bias": True, "tie_word_embeddings": True}),
    "xverse": Case("Llama", {"num_key_value_heads": 8}, convert=permuted),
    "qwen": Case(
        "Qwen2",
        {"num_key_value_heads": 8, "rms_norm_eps": 0.01},
        lambda config: {"feed_forward_length": 2 * config.intermediate_size},
        joined(),
        layer_norm=True,
    ),
    "qwen2vl": Case("Qwen2", {"rope_parameters": THETA}, lambda config: SECTIONS),
    "qwen3vl": Case("Qwen3", {"rope_parameters": THETA}, lambda config: SECTIONS),
    "glm4, sections": Case("Glm4", {**GLM, "head_dim": 16}, lambda config: SECTIONS, in_halves),
    "deci": Case("Llama", {"intermediate_size": 256}, of_deci, without_parts),
}
