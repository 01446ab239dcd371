"""What a model is: the numbers of its config.json or GGUF header, checked before anything is built from them."""

from __future__ import annotations

import difflib
import json
import logging
import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from octavo_engine.attention.backend import KVGroupSpec
from octavo_engine.errors import ModelLoadError
from octavo_engine.model.families import FAMILIES, Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.quantization import FP8Scheme, has_mxfp4_experts, read_scheme
from octavo_engine.model.safetensors_file import has_weights, read_headers
from octavo_engine.model.source import ModelFiles

log = logging.getLogger(__name__)

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
_SAFETENSORS_DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
_ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh")
_MAX_CONFIG_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding (arXiv 2104.09864): how fast each pair of dimensions turns."""

    theta: float
    kind: str = "default"
    """`default`, `linear` (all `factor` slower), `llama3`, `yarn` (slow pairs are slower), `factors` (one each)."""
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192
    factors: tuple[float, ...] = ()
    """Divisors of the head_dim / 2 frequencies, as a GGUF file's `rope_freqs.weight` gives them."""
    beta_fast: float = 32.0
    """YaRN's: pairs that turn more often than this within `original_max_position` stay as they are."""
    beta_slow: float = 1.0
    """Those that turn less often are slower by `factor`."""
    truncate: bool = True
    """Whether the range between is widened to whole pairs."""
    attention_factor: float = 1.0
    """Cosines and sines are multiplied with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoESpec:
    """Feed-forwards that are mixtures of experts (arXiv 1701.06538), each expert `intermediate_size` wide, with biases.

    A router, with biases too, chooses; softmax over the chosen ones' logits weights them.
    """

    experts: int
    active: int
    """Experts of one token."""
    limit: float
    """Gate and up are cut off there (`Experts.limit`)."""
    alpha: float
    mxfp4: bool
    """Whether the checkpoint has experts in MXFP4; they are dequantized while they are loaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """Everything the decoder, the KV cache and the plan need to know of a model besides its weights."""

    architecture: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position: int
    """Longest context in tokens that the model was made for."""
    rms_norm_eps: float
    rope: RopeSpec
    tie_word_embeddings: bool
    attention_bias: bool
    """Whether q, k and v have biases."""
    attention_output_bias: bool
    mlp_bias: bool
    """Whether gate and up have biases."""
    mlp_output_bias: bool
    hidden_act: str
    qk_norm: bool = False
    """Whether each head of query and key is normalised before it is turned (Qwen3)."""
    dtype: torch.dtype
    """The checkpoint's own type: what `--dtype auto` means."""
    eos_token_ids: tuple[int, ...]
    kv_groups: tuple[KVGroupSpec, ...]
    """Layers with full attention, then those with a window."""
    attention_sinks: bool = False
    """Whether each query head has one logit more in the softmax, without a value."""
    moe: MoESpec | None = None
    """None: every feed-forward is dense."""
    quantization: FP8Scheme | None = None
    """How linear layers' weights are stored; None: in the type that is computed in."""


def read_spec(files: ModelFiles) -> ModelSpec:
    """The spec of the model in `files`; ModelLoadError names the file, the field and what is wrong with it."""
    if files.gguf is not None:
        from octavo_engine.model.gguf_config import gguf_config

        return _spec(gguf_config(files.gguf, FAMILIES.values()), files.gguf)
    if files.directory is None:
        raise ModelLoadError(f"{files.name}: no files to read")
    config = read_json(files.directory / "config.json")
    if "eos_token_id" in config or (files.directory / "generation_config.json").is_file():
        config["eos_token_id"] = _all_ends(files.directory, config)
    if config.get("dtype") is None and config.get("torch_dtype") is None:
        config["dtype"] = _most_common_dtype(files.directory)
    return _spec(config, files.directory / "config.json")


def _all_ends(directory: Path, config: dict[str, Any]) -> list[int]:
    """End-of-sequence ids of both files: instruct models name more of them in generation_config.json."""
    ids = Fields(str(directory / "config.json"), config).integers("eos_token_id")
    generation = directory / "generation_config.json"
    if generation.is_file():
        ids += Fields(str(generation), read_json(generation)).integers("eos_token_id")
    return list(ids)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a small JSON file; ModelLoadError if it is absent, huge, broken or no object."""
    try:
        if path.stat().st_size > _MAX_CONFIG_BYTES:
            raise ModelLoadError(f"{path}: {path.stat().st_size} bytes is too large for a configuration file")
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ModelLoadError(f"{path}: there is no such file, and without it the model is unknown") from None
    except OSError as error:
        raise ModelLoadError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path}: holds a JSON {type(value).__name__}, not an object")
    return value


def _spec(config: dict[str, Any], path: Path) -> ModelSpec:
    family = find_family(config.get("architectures"), path)
    fields = Fields(str(path), {**family.defaults, **{k: v for k, v in config.items() if v is not None}})
    hidden = fields.integer("hidden_size", 1, 1 << 20)
    heads, kv_heads, head_dim = _heads(fields, hidden)
    layers = fields.integer("num_hidden_layers", 1, 4096)
    max_position = fields.integer("max_position_embeddings", 1, 1 << 30)
    vocab_size = fields.integer("vocab_size", 1, 1 << 26)
    bias = fields.boolean("attention_bias", False)
    mlp_bias = fields.boolean("mlp_bias", False)
    return ModelSpec(
        architecture=family.architecture,
        num_layers=layers,
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size", 1, 1 << 22),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=vocab_size,
        max_position=max_position,
        rms_norm_eps=fields.number("rms_norm_eps", 0, 1),
        rope=_rope(fields, max_position, head_dim),
        tie_word_embeddings=fields.boolean("tie_word_embeddings", False),
        attention_bias=bias,
        attention_output_bias=bias,
        mlp_bias=mlp_bias,
        mlp_output_bias=mlp_bias,
        hidden_act=_activation(fields),
        qk_norm=family.qk_norm,
        dtype=_dtype(fields),
        eos_token_ids=_eos_token_ids(fields, vocab_size),
        kv_groups=_kv_groups(fields, family, layers, kv_heads, head_dim),
        attention_sinks=family.attention_sinks,
        moe=_moe(fields) if family.experts else None,
        quantization=None if family.experts else read_scheme(fields),
    )


def _kv_groups(fields: Fields, family: Family, layers: int, kv_heads: int, head_dim: int) -> tuple[KVGroupSpec, ...]:
    """Layers with full attention, and those with a window; ModelLoadError if the family is not computed with windows.

    Qwen3's layers may have windows, for which there is no code: long prompts would be answered wrongly.
    """
    if fields.boolean("use_sliding_window", False):
        raise fields.wrong("use_sliding_window", True, "is not supported")
    every_second = [f"{'full' if layer % 2 else 'sliding'}_attention" for layer in range(layers)]
    kinds = fields.values.get("layer_types") or (every_second if family.sliding_layers else ["full_attention"] * layers)
    known = {"full_attention", "sliding_attention"} if family.sliding_layers else {"full_attention"}
    if not isinstance(kinds, list) or set(map(str, kinds)) - known:
        raise fields.wrong("layer_types", kinds, f"is not supported, only {' and '.join(sorted(known))} in all layers")
    if family.sliding_layers and len(kinds) != layers:
        raise fields.wrong("layer_types", kinds, f"does not name {layers} layers")
    sliding = tuple(layer for layer in range(layers) if family.sliding_layers and kinds[layer] == "sliding_attention")
    full = tuple(layer for layer in range(layers) if layer not in sliding)
    groups = [KVGroupSpec("full", full, kv_heads, head_dim)] if full else []
    if sliding:
        window = fields.integer("sliding_window", 1, 1 << 30)
        groups.append(KVGroupSpec("sliding", sliding, kv_heads, head_dim, window))
    return tuple(groups)


def _moe(fields: Fields) -> MoESpec:
    experts = fields.integer("num_local_experts", 1, 1 << 16)
    return MoESpec(
        experts=experts,
        active=fields.integer("num_experts_per_tok", 1, experts),
        limit=fields.number("swiglu_limit", 1e-3, 1e6),
        alpha=fields.number("swiglu_alpha", 0, 1e3),
        mxfp4=has_mxfp4_experts(fields),
    )


def _heads(fields: Fields, hidden: int) -> tuple[int, int, int]:
    """Query heads, KV heads and the size of a head."""
    heads = fields.integer("num_attention_heads", 1, 1 << 16)
    if not fields.has("head_dim") and hidden % heads:
        raise fields.wrong("hidden_size", hidden, f"is not a multiple of num_attention_heads {heads}")
    kv_heads = fields.integer("num_key_value_heads", 1, heads, default=heads)
    if heads % kv_heads:
        raise fields.wrong("num_key_value_heads", kv_heads, f"does not divide num_attention_heads {heads}")
    head_dim = fields.integer("head_dim", 2, 1024, default=hidden // heads)
    if head_dim % 2:
        raise fields.wrong("head_dim", head_dim, "is odd, and rotary embeddings turn pairs")
    return heads, kv_heads, head_dim


def find_family(architectures: Any, path: Path) -> Family:
    """The family of the first supported name in `architectures`; ModelLoadError names the nearest one there is."""
    names = architectures if isinstance(architectures, list) else [architectures]
    names = [name for name in names if isinstance(name, str)]
    for name in names:
        if name in FAMILIES:
            return FAMILIES[name]
    supported = ", ".join(FAMILIES)
    if not names:
        raise ModelLoadError(f"{path}: architectures is missing or no list of names; supported: {supported}")
    nearest = difflib.get_close_matches(names[0], FAMILIES, n=1, cutoff=0.0)[0]
    raise ModelLoadError(
        f"{path}: the architecture {names[0]!r} is not supported; the nearest supported is {nearest} (all: {supported})"
    )


def _rope(fields: Fields, max_position: int, head_dim: int) -> RopeSpec:
    """Transformers 5 puts all in `rope_parameters`; before, `rope_theta` stood beside `rope_scaling`."""
    rope = fields.mapping("rope_parameters") or fields.mapping("rope_scaling") or Fields(fields.origin, {})
    theta = (rope if rope.has("rope_theta") else fields).number("rope_theta", 1e-3, 1e12)
    partial = (rope if rope.has("partial_rotary_factor") else fields).number("partial_rotary_factor", 0, 1, default=1.0)
    if partial != 1:
        raise fields.wrong("partial_rotary_factor", partial, "is not supported, only 1")
    kind = rope.text("rope_type", default=rope.values.get("type", "default"))
    if kind == "default":
        return RopeSpec(theta)
    if kind == "factors":
        factors = rope.values.get("factors")
        if (
            not isinstance(factors, list)
            or len(factors) != head_dim // 2
            or not all(isinstance(factor, float) and 0 < factor < 1e6 for factor in factors)
        ):
            raise rope.wrong("factors", factors, f"is not {head_dim // 2} positive numbers")
        return RopeSpec(theta, kind, factors=tuple(factors))
    if kind not in ("linear", "llama3", "yarn"):
        raise rope.wrong("rope_type", kind, "is not supported; supported: default, linear, llama3, yarn")
    factor = rope.number("factor", 1e-3, 1e6)
    if kind == "linear":
        return RopeSpec(theta, kind, factor)
    if kind == "yarn":
        return _yarn(rope, theta, factor)
    low, high = rope.number("low_freq_factor", 1e-6, 1e6), rope.number("high_freq_factor", 1e-6, 1e6)
    if high <= low:
        raise rope.wrong("high_freq_factor", high, f"is not above low_freq_factor {low:g}")
    original = rope.integer("original_max_position_embeddings", 1, 1 << 30, default=max_position)
    return RopeSpec(theta, kind, factor, low, high, original)


def _yarn(rope: Fields, theta: float, factor: float) -> RopeSpec:
    """YaRN (arXiv 2309.00071); its attention factor is 0.1 ln(factor) + 1 unless one is given."""
    for name in ("mscale", "mscale_all_dim"):
        if rope.has(name):
            raise rope.wrong(name, rope.values[name], "is not supported")
    slow, fast = rope.number("beta_slow", 1e-6, 1e6, default=1.0), rope.number("beta_fast", 1e-6, 1e6, default=32.0)
    if fast <= slow:
        raise rope.wrong("beta_fast", fast, f"is not above beta_slow {slow:g}")
    if theta <= 1:
        raise rope.wrong("rope_theta", theta, "is not above 1")
    attention = rope.number("attention_factor", 1e-3, 1e3, default=0.1 * math.log(max(1.0, factor)) + 1)
    return RopeSpec(
        theta,
        "yarn",
        factor,
        original_max_position=rope.integer("original_max_position_embeddings", 1, 1 << 30),
        beta_fast=fast,
        beta_slow=slow,
        truncate=rope.boolean("truncate", True),
        attention_factor=attention,
    )


def _activation(fields: Fields) -> str:
    name = fields.text("hidden_act")
    if name not in _ACTIVATIONS:
        raise fields.wrong("hidden_act", name, f"is not supported; supported: {', '.join(_ACTIVATIONS)}")
    return name


def _dtype(fields: Fields) -> torch.dtype:
    key = "dtype" if fields.has("dtype") else "torch_dtype"
    name = fields.text(key, default="float32").removeprefix("torch.")
    if name not in _DTYPES:
        raise fields.wrong(key, name, f"is not supported; supported: {', '.join(_DTYPES)}")
    return _DTYPES[name]


def _eos_token_ids(fields: Fields, vocab_size: int) -> tuple[int, ...]:
    ids = dict.fromkeys(fields.integers("eos_token_id"))
    if outside := [token for token in ids if not 0 <= token < vocab_size]:
        log.warning(
            "%s: eos_token_id %s lies outside the vocabulary and can never end an answer", fields.origin, outside
        )
    return tuple(token for token in ids if 0 <= token < vocab_size)


def _most_common_dtype(directory: Path) -> str:
    """The type most bytes of the weights have, for a config.json that does not say.

    Before they are fetched it is bfloat16, what most are published in: the size it gives is the least it can be, so
    that nothing is refused for want of memory that would have fitted.
    """
    if not has_weights(directory):
        return "bfloat16"
    counts: Counter[str] = Counter()
    for header in read_headers(directory):
        for tensor in header.tensors.values():
            if tensor.dtype not in ("F8_E4M3", "U8"):  # nothing is computed in them alone
                counts[tensor.dtype] += tensor.num_bytes
    name = counts.most_common(1)[0][0] if counts else "F32"
    return str(_SAFETENSORS_DTYPES.get(name, torch.float32))
