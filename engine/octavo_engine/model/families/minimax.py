"""MiniMax Text 01 (arXiv 2501.08313): linear attention in some layers, full attention in others, experts in all.

The linear one is Lightning Attention. The result of attention, and of the experts, is added to what its norm gave
instead of to what the norm read, and both terms have factors.
"""

from __future__ import annotations

from typing import Any

from octavo_engine.model.checkpoint.names import QKVLayout, TensorNames
from octavo_engine.model.families import mixtures, reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import (
    AttentionSpec,
    LayerNorms,
    LayerSpec,
    LightningAttentionSpec,
    ModelSpec,
    RouterSpec,
)

_MOE = "model.layers.{layer}.block_sparse_moe"


def _names(heads: int) -> TensorNames:
    return TensorNames(
        qkv_layout=QKVLayout(groups=heads),
        modules=((".mlp.", ".block_sparse_moe."),),
        router=f"{_MOE}.gate",
        expert_gate=f"{_MOE}.experts.{{expert}}.w1",
        expert_up=f"{_MOE}.experts.{{expert}}.w3",
        expert_down=f"{_MOE}.experts.{{expert}}.w2",
    )


def _read(fields: Fields) -> ModelSpec:
    norm, count = reading.rms_norm(fields), reading.num_layers(fields)
    attention = reading.attention(fields, window=reading.window(fields))
    layers = []
    for index, kind in enumerate(_layer_types(fields, count)):
        full = kind == "full_attention"
        stream, result = _factors(fields, "full_attn" if full else "linear_attn")
        feed_forward_stream, feed_forward_result = _factors(fields, "mlp")
        moe = mixtures.experts(
            fields,
            RouterSpec(scores="softmax", renormalize=True),
            count="num_local_experts",
            size="intermediate_size",
            scale=feed_forward_result / result,
        )
        norms = LayerNorms(
            before_mixer=norm,
            before_feed_forward=norm,
            into_stream=True,
            stream_scales=(stream, feed_forward_stream),
        )
        mixer = attention if full else _lightning(fields, attention, index / (count - 1 + 1e-5))
        layers.append(LayerSpec(mixer=mixer, feed_forward=moe, norms=norms, residual_scale=result))
    names = _names(attention.num_heads)
    return reading.model(fields, MINIMAX.architecture, tuple(layers), norm=norm, names=names)


def _factors(fields: Fields, part: str) -> tuple[float, float]:
    """Return the factors of the residual stream and of the result that is added to it."""
    stream, result = (fields.number(f"{part}_{name}_factor", 1e-6, 1e6, default=1.0) for name in ("alpha", "beta"))
    return stream, result


def _lightning(fields: Fields, attention: AttentionSpec, depth: float) -> LightningAttentionSpec:
    """Return Lightning Attention with slopes like ALiBi's, times 1 - `depth`, the layer's place from 0 to nearly 1."""
    base, factor = 2 ** (-8 / attention.num_heads), 1 - depth + 1e-5
    return LightningAttentionSpec(
        num_heads=attention.num_heads,
        head_dim=attention.head_dim,
        slopes=tuple(base ** (head + 1) * factor for head in range(attention.num_heads)),
        activation=fields.text("hidden_act"),
        norm_eps=1e-6,
    )


def _layer_types(fields: Fields, count: int) -> list[str]:
    given: Any = fields.values.get("layer_types")
    kinds = (
        ["linear_attention" if layer % 2 else "full_attention" for layer in range(count)] if given is None else given
    )
    known = {"full_attention", "linear_attention"}
    if not isinstance(kinds, list) or len(kinds) != count or set(map(str, kinds)) - known:
        raise fields.wrong("layer_types", kinds, f"is not {count} times full_attention or linear_attention")
    return kinds


MINIMAX = Family(
    architecture="MiniMaxForCausalLM",
    model_type="minimax",
    read=_read,
    defaults={
        "num_key_value_heads": 8,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        "max_position_embeddings": 131072,
        "intermediate_size": 14336,
        "num_experts_per_tok": 2,
        "num_local_experts": 8,
        "tie_word_embeddings": False,
        "eos_token_id": 2,
    },
)
