"""Reads the fields of config.json that many families have in common.

Each function raises ModelLoadError about fields it cannot use.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from octavo_engine.model.families.rope import rope
from octavo_engine.model.fields import Fields
from octavo_engine.model.quantization.select import read_quantization
from octavo_engine.model.spec import (
    AttentionSpec,
    HeadSpec,
    LayerNorms,
    LayerSpec,
    MLPSpec,
    ModelSpec,
    NormSpec,
)

log = logging.getLogger(__name__)

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
_MOST_LAYERS = 1024
"""Large models have 130 layers; to describe 4,096, none of which has a tensor in the files, took half a minute."""
_MOST_EXPERTS = 1 << 17
"""The most experts in all layers together; Kimi K2 has 23,424."""
_WIDEST_HEADS = 1 << 20
"""The most dimensions of all query heads of a layer together; published models have some ten thousand."""
_ACTIVATIONS = (
    "silu",
    "swish",
    "gelu",
    "gelu_new",
    "gelu_fast",
    "gelu_accurate",
    "gelu_python",
    "gelu_pytorch_tanh",
    "quick_gelu",
    "relu",
    "relu2",
    "relu6",
    "leaky_relu",
    "hardswish",
    "mish",
    "tanh",
    "sigmoid",
    "gelu_10",
    "gelu_python_tanh",
    "laplace",
    "linear",
)


def model(fields: Fields, architecture: str, layers: tuple[LayerSpec, ...], **values: Any) -> ModelSpec:
    """Return the model of `layers`; `values` are further fields of ModelSpec, or replace what config.json says."""
    vocab_size = fields.integer("vocab_size", 1, 1 << 26)
    if "quantization" not in values:
        values["quantization"] = read_quantization(fields)
    values.setdefault("head", HeadSpec(tied=fields.boolean("tie_word_embeddings", False)))
    return ModelSpec(
        architecture=architecture,
        hidden_size=hidden_size(fields),
        vocab_size=vocab_size,
        max_position=max_position(fields),
        dtype=_dtype(fields),
        eos_token_ids=_eos_token_ids(fields, vocab_size),
        layers=layers,
        **values,
    )


def repeated(fields: Fields, layer: LayerSpec) -> tuple[LayerSpec, ...]:
    """Return `layer` once for each layer of the model."""
    return (layer,) * num_layers(fields)


def num_layers(fields: Fields) -> int:
    """Read the number of layers."""
    return fields.integer("num_hidden_layers", 1, _MOST_LAYERS)


def hidden_size(fields: Fields) -> int:
    """Read the width of the residual stream."""
    return fields.integer("hidden_size", 1, 1 << 20)


def max_position(fields: Fields) -> int:
    """Read the longest context that the model was made for, in tokens."""
    return fields.integer("max_position_embeddings", 1, 1 << 30)


def intermediate_size(fields: Fields, name: str = "intermediate_size") -> int:
    """Read the width between a feed-forward's projections."""
    return fields.integer(name, 1, 1 << 22)


def attention(
    fields: Fields,
    *,
    partial_rotary: bool = False,
    odd_rotary: bool = True,
    layer_type: str | None = None,
    grouped: bool = True,
    **values: Any,
) -> AttentionSpec:
    """Return grouped-query attention with RoPE, whose scores are divided by the root of a head's size.

    `partial_rotary`: whether the family may rotate only a part of each head; `odd_rotary`: whether an odd number of
    dimensions is then rounded up, and not refused. `layer_type`: the layer's type, in families where each type may have
    a RoPE of its own. `grouped`: whether fields may state the number of KV heads and the size of a head; otherwise each
    head has a key and a value of its own, and all heads together are as wide as the residual stream. `values` are
    further fields of AttentionSpec, or replace what config.json says.
    """
    heads, kv_heads, head_dim = _heads(fields if grouped else fields.without("num_key_value_heads", "head_dim"))
    if not grouped and hidden_size(fields) % heads:
        raise fields.wrong("hidden_size", hidden_size(fields), f"is not a multiple of num_attention_heads {heads}")
    values.setdefault("scale", head_dim**-0.5)
    if "rope" not in values:
        values["rope"] = rope(fields, max_position(fields), head_dim, partial=partial_rotary, layer_type=layer_type)
        if not odd_rotary and values["rope"] is not None and (values["rope"].rotary_dim or 0) % 2:
            share = fields.values.get("partial_rotary_factor")
            raise fields.wrong("partial_rotary_factor", share, f"rotates an odd number of {head_dim} dimensions")
    return AttentionSpec(num_heads=heads, num_kv_heads=kv_heads, head_dim=head_dim, **values)


def with_rope(mixer: AttentionSpec, **values: Any) -> AttentionSpec:
    """Return `mixer` with these values in its RoPE, if it has one."""
    return mixer if mixer.rope is None else replace(mixer, rope=replace(mixer.rope, **values))


def without_rope(mixer: AttentionSpec) -> AttentionSpec:
    """Return `mixer` without RoPE."""
    return replace(mixer, rope=None)


def interleaved(mixer: AttentionSpec) -> AttentionSpec:
    """Return `mixer` with RoPE of neighbouring dimensions, for which rows are permuted while they are loaded."""
    return with_rope(mixer, interleaved=True)


def _heads(fields: Fields) -> tuple[int, int, int]:
    """Read the number of query heads, of KV heads, and the size of a head."""
    heads = fields.integer("num_attention_heads", 1, 1 << 16)
    kv_heads = fields.integer("num_key_value_heads", 1, heads, default=heads)
    if heads % kv_heads:
        raise fields.wrong("num_key_value_heads", kv_heads, f"does not divide num_attention_heads {heads}")
    head_dim = fields.integer("head_dim", 2, 1024, default=hidden_size(fields) // heads)
    if heads * head_dim > _WIDEST_HEADS:
        raise fields.wrong("num_attention_heads", heads, f"of head_dim {head_dim} are wider than {_WIDEST_HEADS}")
    return heads, kv_heads, head_dim


def num_experts(fields: Fields, name: str) -> int:
    """Read the number of experts of each mixture.

    It is limited, since a small file must not ask for more tensors than any checkpoint could hold.
    """
    return fields.integer(name, 1, min(1 << 16, _MOST_EXPERTS // num_layers(fields)))


def mlp(fields: Fields, **values: Any) -> MLPSpec:
    """Return a dense feed-forward; `values` are fields of MLPSpec, and it has a gate unless they say otherwise."""
    values.setdefault("activation", None)
    values["activation"] = values["activation"] or activation(fields)
    if "intermediate_size" not in values:
        values["intermediate_size"] = intermediate_size(fields)
    return MLPSpec(**values)


def plain_mlp(fields: Fields, width: str = "intermediate_size", *, bias: bool) -> MLPSpec:
    """Return a feed-forward without a gate; its size is the field `width`, by default four times the hidden size."""
    size = fields.integer(width, 1, 1 << 22, default=4 * hidden_size(fields))
    return MLPSpec(intermediate_size=size, activation=activation(fields), gated=False, bias=bias, output_bias=bias)


def activation(fields: Fields, name: str = "hidden_act") -> str:
    """Read the name of the activation function in the field `name`."""
    value = fields.text(name)
    if value not in _ACTIVATIONS:
        raise fields.wrong(name, value, f"is not supported; supported: {', '.join(_ACTIVATIONS)}")
    return value


def require_silu(fields: Fields) -> None:
    """Raise ModelLoadError if `hidden_act` is not SiLU, the only activation that experts are computed with."""
    if fields.text("hidden_act") != "silu":
        raise fields.wrong("hidden_act", fields.values["hidden_act"], "is not supported for experts, only silu")


def rms_norm(fields: Fields, **values: Any) -> NormSpec:
    """Return RMSNorm with the epsilon in `rms_norm_eps`; `values` are further fields of NormSpec."""
    return NormSpec(fields.number("rms_norm_eps", 0, 1), **values)


def layer_norm(fields: Fields, *, bias: bool, eps: str = "layer_norm_eps", weight_offset: float = 0.0) -> NormSpec:
    """Return LayerNorm with the epsilon in the field `eps`."""
    return NormSpec(fields.number(eps, 0, 1), "layer", bias, weight_offset)


def norms_before(norm: NormSpec) -> LayerNorms:
    """Return the places of Llama's norms: before the mixer and before the feed-forward."""
    return LayerNorms(before_mixer=norm, before_feed_forward=norm)


def window(fields: Fields) -> int | None:
    """Read `sliding_window`, in families where all layers have it; None if it is null."""
    return fields.integer("sliding_window", 1, 1 << 30) if fields.has("sliding_window") else None


def rotates(fields: Fields) -> tuple[bool, ...]:
    """Return for each layer whether it has RoPE: 1 in `no_rope_layers`, or by default by `no_rope_layer_interval`."""
    count, flags = num_layers(fields), fields.integers("no_rope_layers")
    if not flags:
        interval = fields.integer("no_rope_layer_interval", 1, 4096)
        return tuple((layer + 1) % interval != 0 for layer in range(count))
    if len(flags) != count:
        raise fields.wrong("no_rope_layers", flags, f"does not name {count} layers")
    return tuple(map(bool, flags))


def layer_types(fields: Fields, known: set[str], default: Callable[[int], str], name: str = "layer_types") -> list[str]:
    """Return the type of each layer, one of `known`: from the field `name`, or from `default` where that is absent."""
    count, kinds = num_layers(fields), fields.values.get(name)
    if kinds is None:
        kinds = [default(layer) for layer in range(count)]
    _check_kinds(fields, kinds, known, name)
    if len(kinds) != count:
        raise fields.wrong(name, kinds, f"does not name {count} layers")
    return kinds


def windows(fields: Fields, default: Callable[[int], bool]) -> tuple[int | None, ...]:
    """Return for each layer the number of tokens that its attention sees; None: all.

    Where `layer_types` is absent, the layers with a window are those of which `default` is true.
    """
    known = {"full_attention", "sliding_attention"}
    kinds = layer_types(fields, known, lambda layer: f"{'sliding' if default(layer) else 'full'}_attention")
    if "sliding_attention" not in kinds:
        return (None,) * len(kinds)
    window = fields.integer("sliding_window", 1, 1 << 30)
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def late_windows(fields: Fields) -> tuple[int | None, ...]:
    """Return each layer's window (Qwen2): from layer `max_window_layers` on, if `use_sliding_window` is true."""
    if not fields.boolean("use_sliding_window", False):
        return (None,) * num_layers(fields)
    first = fields.integer("max_window_layers", 0, 4096)
    return windows(fields, default=lambda layer: layer >= first)


def layer_type(window: int | None) -> str:
    """Return config.json's name of the type of a layer with this window."""
    return "full_attention" if window is None else "sliding_attention"


def softcap(fields: Fields, name: str) -> float | None:
    """Read the bound of a softcap in the field `name`; None if it is null."""
    return fields.number(name, 1e-3, 1e6) if fields.has(name) else None


def scale(fields: Fields, name: str) -> float:
    """Read the field `name`, a factor above 0."""
    return fields.number(name, 1e-6, 1e6)


def refuse_if_true(fields: Fields, *names: str) -> None:
    """Raise ModelLoadError if one of these fields is true: what it asks for is not computed."""
    for name in names:
        if fields.boolean(name, False):
            raise fields.wrong(name, True, "is not supported")


def refuse_windows(fields: Fields) -> None:
    """Raise ModelLoadError if layers have sliding windows, with which the family is not computed."""
    if fields.boolean("use_sliding_window", False):
        raise fields.wrong("use_sliding_window", True, "is not supported")
    _check_kinds(fields, fields.values.get("layer_types") or ["full_attention"], {"full_attention"})


def _check_kinds(fields: Fields, kinds: Any, known: set[str], name: str = "layer_types") -> None:
    if not isinstance(kinds, list) or set(map(str, kinds)) - known:
        raise fields.wrong(name, kinds, f"is not supported, only {' and '.join(sorted(known))} in all layers")


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
            "%s", fields.wrong("eos_token_id", outside, "lies outside the vocabulary and can never end an answer")
        )
    return tuple(token for token in ids if 0 <= token < vocab_size)
