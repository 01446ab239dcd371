"""transformers models of many families as GGUF files, with the keys and tensors of llama.cpp's converter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.constants import GGMLQuantizationType as Kind
from gguf.quants import quantize
from gguf_writer import permute

Tensors = Iterator[tuple[str, np.ndarray]]


@dataclass(frozen=True)
class Case:
    """One architecture's files."""

    family: str
    """transformers' class without ForCausalLM."""
    changes: dict[str, Any] = field(default_factory=dict)
    """Of the configuration that models are made with."""
    keys: Callable[[Any], dict[str, Any]] = lambda config: {}
    """Of the configuration: keys without the architecture's name."""
    convert: Callable[[Any, str, np.ndarray], Tensors] = lambda config, name, array: iter([(name, array)])
    """One of the model's tensors as those that are stored; a name that begins with `blk.` is stored as it is."""
    vectors: Callable[[Any], dict[str, np.ndarray]] = lambda config: {}
    layer_norm: bool = False


def permuted(config: Any, name: str, array: np.ndarray) -> Tensors:
    """Rows of query and key as pairs that rotate together."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    part = name.split(".")[-2]
    yield name, permute(array, heads[part]) if part in heads else array


def with_norms_whole(config: Any, name: str, array: np.ndarray) -> Tensors:
    """Norms that checkpoints hold less one."""
    yield name, array + 1 if name.endswith("norm.weight") else array


def layernorm_one_more(config: Any, name: str, array: np.ndarray) -> Tensors:
    """Nemotron's."""
    yield name, array + 1 if "norm" in name and name.endswith("weight") else array


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


def in_turn(config: Any, name: str, array: np.ndarray, *, groups: Callable[[Any], int]) -> Tensors:
    """Query, key and value one after another, which checkpoints have in groups of heads."""
    if "query_key_value" not in name:
        yield name, array
        return
    count, heads = groups(config), config.num_attention_heads
    per_group = array.reshape(count, heads // count + 2, -1, *array.shape[1:])
    parts = per_group[:, :-2], per_group[:, -2], per_group[:, -1]
    yield name, np.concatenate([part.reshape(-1, *array.shape[1:]) for part in parts])


def as_rows(config: Any, name: str, array: np.ndarray) -> Tensors:
    """GPT-2's matrices [in, out] transposed."""
    turned = name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight"))
    yield name, array.T.copy() if turned else array


def experts(config: Any) -> dict[str, Any]:
    """Return the keys of a mixture of experts."""
    count = getattr(config, "num_experts", None) or config.num_local_experts
    width = getattr(config, "moe_intermediate_size", None)
    width_key = {} if width is None else {"expert_feed_forward_length": width}
    return {"expert_count": count, "expert_used_count": config.num_experts_per_tok, **width_key}


def granite(config: Any) -> dict[str, Any]:
    """Its four scales."""
    return {
        "attention.scale": config.attention_multiplier,
        "embedding_scale": config.embedding_multiplier,
        "residual_scale": config.residual_multiplier,
        "logit_scale": config.logits_scaling,
    }


def longrope(config: Any) -> dict[str, np.ndarray]:
    """Phi-3's divisors."""
    rope = config.rope_parameters
    return {f"rope_factors_{kind}.weight": np.array(rope[f"{kind}_factor"], np.float32) for kind in ("short", "long")}


SCALES = {
    "attention_multiplier": 0.2,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.7,
    "logits_scaling": 2.0,
}
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
NO_HEAD_SIZES: dict[str, Any] = {"num_key_value_heads": ...}
HALF = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.5, 2.0, 3.0],
    "long_factor": [2.0, 3.0, 4.0, 8.0],
    "original_max_position_embeddings": 64,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 12.0,
    "beta_slow": 0.5,
}


def window(config: Any) -> dict[str, Any]:
    """The tokens that layers with a window see."""
    return {"attention.sliding_window": config.sliding_window or 0}


def yarn(config: Any) -> dict[str, Any]:
    """Return the keys of a model whose context was extended with YaRN."""
    return {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": config.rope_parameters["factor"],
        "rope.scaling.original_context_length": config.rope_parameters["original_max_position_embeddings"],
        "rope.scaling.yarn_beta_fast": config.rope_parameters["beta_fast"],
        "rope.scaling.yarn_beta_slow": config.rope_parameters["beta_slow"],
    }


def capped(config: Any) -> dict[str, Any]:
    """Gemma 2's bounds."""
    caps = {f"{part}_logit_softcapping": getattr(config, f"{part}_logit_softcapping") for part in ("attn", "final")}
    return {**window(config), **caps}


CASES: dict[str, Case] = {
    "llama, experts": Case("Mixtral", LOCAL, experts, partial(stacked, rope=True)),
    "qwen3, yarn": Case("Qwen3", {"rope_parameters": YARN, "head_dim": 16}, yarn),
    "qwen2moe": Case(
        "Qwen2Moe",
        {**MOE, "shared_expert_intermediate_size": 48},
        lambda config: {**experts(config), "expert_shared_feed_forward_length": 48},
        stacked,
    ),
    "qwen3moe": Case("Qwen3Moe", {**MOE, "norm_topk_prob": True, "head_dim": 16}, experts, stacked),
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
    "phi2": Case("Phi", HALF, layer_norm=True),
    "phi3": Case("Phi3", {"sliding_window": 4, "pad_token_id": 0}, window),
    "phi3, long": Case(
        "Phi3",
        {"rope_parameters": LONG, "original_max_position_embeddings": 64, "pad_token_id": 0},
        lambda config: {"rope.scaling.original_context_length": config.original_max_position_embeddings},
        vectors=longrope,
    ),
    "granite": Case("Granite", SCALES, granite, permuted),
    "granitemoe": Case(
        "GraniteMoe", {**SCALES, **LOCAL}, lambda c: {**granite(c), **experts(c)}, partial(stacked, rope=True)
    ),
    "granitemoe, shared": Case(
        "GraniteMoeShared",
        {**SCALES, **LOCAL, "shared_intermediate_size": 48},
        lambda c: {**granite(c), **experts(c), "expert_shared_feed_forward_length": 48},
        partial(stacked, rope=True),
    ),
    "olmo": Case("Olmo", {"clip_qkv": 0.5}, lambda c: {"attention.clamp_kqv": c.clip_qkv}, permuted, layer_norm=True),
    "olmo2": Case("Olmo2"),
    "olmoe": Case("Olmoe", {"num_experts": 4, "num_experts_per_tok": 2}, experts, stacked),
    "starcoder2": Case("Starcoder2", {"use_bias": True}, layer_norm=True),
    "stablelm": Case(
        "StableLm",
        {**HALF, "use_qkv_bias": True},
        lambda config: {"use_parallel_residual": config.use_parallel_residual},
        layer_norm=True,
    ),
    "command-r": Case("Cohere", keys=lambda config: {"logit_scale": config.logit_scale}, layer_norm=True),
    "command-r, norms": Case(
        "Cohere", {"use_qk_norm": True}, lambda config: {"logit_scale": config.logit_scale}, layer_norm=True
    ),
    "cohere2": Case(
        "Cohere2",
        {"sliding_window": 4, "num_hidden_layers": 4},
        lambda config: {"logit_scale": config.logit_scale, **window(config)},
        layer_norm=True,
    ),
    "falcon": Case(
        "Falcon",
        {"multi_query": True, **NO_HEAD_SIZES},
        convert=partial(in_turn, groups=lambda _: 1),
        layer_norm=True,
    ),
    "falcon, new": Case(
        "Falcon",
        {"new_decoder_architecture": True, "num_kv_heads": 2, **NO_HEAD_SIZES},
        convert=partial(in_turn, groups=lambda config: config.num_kv_heads),
        layer_norm=True,
    ),
    "gpt2": Case("GPT2", NO_HEAD_SIZES, convert=as_rows, layer_norm=True),
    "bloom": Case(
        "Bloom",
        NO_HEAD_SIZES,
        convert=partial(in_turn, groups=lambda config: config.num_attention_heads),
        layer_norm=True,
    ),
    "gptneox": Case(
        "GPTNeoX",
        {**HALF, **NO_HEAD_SIZES, "use_parallel_residual": False},
        lambda config: {"use_parallel_residual": config.use_parallel_residual},
        partial(in_turn, groups=lambda config: config.num_attention_heads),
        layer_norm=True,
    ),
    "smollm3": Case("SmolLM3", {"num_hidden_layers": 4, "pad_token_id": 0}, convert=permuted),
    "arcee": Case("Arcee", convert=permuted),
    "nemotron": Case("Nemotron", HALF, convert=layernorm_one_more, layer_norm=True),
    "seed_oss": Case("SeedOss", {"head_dim": 16}),
    "hunyuan-dense": Case("HunYuanDenseV1", {"head_dim": 16}),
    "ernie4_5": Case("Ernie4_5", {"head_dim": 16}),
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
"""By the architecture's name, and what is special after a comma."""


def _common(config: Any, case: Case) -> dict[str, Any]:
    heads = config.num_attention_heads
    rope = getattr(config, "rope_parameters", None) or {}
    full = rope.get("full_attention", rope)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    width = 4 * config.hidden_size if case.family in ("GPT2", "Bloom", "Falcon") else config.intermediate_size
    names = ("norm_epsilon", "layer_norm_eps", "layer_norm_epsilon", "norm_eps")
    eps = next((getattr(config, name) for name in names if hasattr(config, name)), 1e-5)
    norm = "layer_norm_epsilon" if case.layer_norm else "layer_norm_rms_epsilon"
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    if case.family == "Falcon":
        kv_heads = config.num_kv_heads if config.new_decoder_architecture else 1
    found = {
        "block_count": config.num_hidden_layers,
        "context_length": getattr(config, "max_position_embeddings", None) or 512,
        "embedding_length": config.hidden_size,
        "feed_forward_length": width,
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        f"attention.{norm}": eps if case.layer_norm else config.rms_norm_eps,
        "rope.dimension_count": int(head_dim * full.get("partial_rotary_factor", 1.0)),
        "rope.freq_base": full.get("rope_theta", 10000.0),
    }
    return found | ({} if head_dim * heads == config.hidden_size else {"attention.key_length": head_dim})


def write_case(model: Any, path: Path, name: str, kind: Kind = Kind.F32) -> Path:
    """`model`, which is of the case's family, as a file whose matrices are of a type."""
    case, config, architecture = CASES[name], model.config, name.partition(",")[0]
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in {**_common(config, case), **case.keys(config)}.items():
        add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        add[type(value)](f"{architecture}.{key}", value)
    number = next(number for number, each in gguf.MODEL_ARCH_NAMES.items() if each == architecture)
    mapping = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    for key, tensor in model.state_dict().items():
        if key in ("lm_head.weight", "embed_out.weight") and config.tie_word_embeddings:
            continue
        for stored, array in case.convert(config, key, tensor.numpy()):
            bare = stored.removeprefix("transformer.") if case.family == "Bloom" else stored
            theirs = stored if stored.startswith("blk.") else mapping.get_name(bare, (".weight", ".bias"))
            assert theirs is not None, stored
            _add(writer, theirs, array, kind)
    for key, array in case.vectors(config).items():
        writer.add_tensor(key, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, name: str, array: np.ndarray, kind: Kind) -> None:
    block = gguf.GGML_QUANT_SIZES[kind][0]
    if array.ndim > 1 and kind is not Kind.F32 and array.shape[-1] % block == 0:
        writer.add_tensor(name, quantize(array, kind), raw_dtype=kind)
    else:
        writer.add_tensor(name, np.ascontiguousarray(array, np.float32))
