"""GPT-Neo of EleutherAI: GPT-2 with attention scores that are not scaled, and a sliding window in some layers.

Weights are stored as [out, in], and query, key and value have no biases.
"""

from __future__ import annotations

from typing import Any

from octavo_engine.model.checkpoint.names import TensorNames
from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import HeadSpec, LayerSpec, ModelSpec, PositionSpec

_ATTENTION = "transformer.h.{layer}.attn.attention"
_NAMES = TensorNames(
    embedding="transformer.wte",
    positions="transformer.wpe",
    norm="transformer.ln_f",
    before_mixer="transformer.h.{layer}.ln_1",
    before_feed_forward="transformer.h.{layer}.ln_2",
    query=f"{_ATTENTION}.q_proj",
    key=f"{_ATTENTION}.k_proj",
    value=f"{_ATTENTION}.v_proj",
    output=f"{_ATTENTION}.out_proj",
    attention=_ATTENTION,
    buffers=(f"{_ATTENTION}.bias", f"{_ATTENTION}.masked_bias"),
    up="transformer.h.{layer}.mlp.c_fc",
    down="transformer.h.{layer}.mlp.c_proj",
)


def _read(fields: Fields) -> ModelSpec:
    norm = reading.layer_norm(fields, bias=True)
    layers = tuple(
        LayerSpec(
            mixer=reading.attention(fields, grouped=False, rope=None, scale=1.0, output_bias=True, window=window),
            feed_forward=reading.plain_mlp(fields, bias=True),
            norms=reading.norms_before(norm),
        )
        for window in _windows(fields)
    )
    head, positions = HeadSpec(fields.boolean("tie_word_embeddings", True)), PositionSpec()
    return reading.model(fields, GPT_NEO.architecture, layers, norm=norm, head=head, positions=positions, names=_NAMES)


def _windows(fields: Fields) -> list[int | None]:
    """Return each layer's window from `attention_types`: lists of kinds, and how often each list is repeated.

    `attention_layers`, which says the same layer by layer in files that transformers writes, takes precedence.
    """
    stated: Any = fields.values["attention_types"]
    if isinstance(layers := fields.values.get("attention_layers"), list):
        stated = [[layers, 1]]
    count, window = reading.num_layers(fields), fields.integer("window_size", 1, 1 << 30)
    try:
        kinds = [kind for pattern, times in stated for _ in range(min(times, count + 1)) for kind in pattern]
    except (TypeError, ValueError):
        raise fields.wrong("attention_types", stated, "is not a list of kinds of layers with their numbers") from None
    if len(kinds) != count or set(map(str, kinds)) - {"global", "local"}:
        raise fields.wrong(
            "attention_types", stated, f"does not say of {count} layers whether they are global or local"
        )
    return [window if kind == "local" else None for kind in kinds]


GPT_NEO = Family(
    architecture="GPTNeoForCausalLM",
    model_type="gpt_neo",
    read=_read,
    aliases={
        "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads",
        "activation_function": "hidden_act",
        "layer_norm_epsilon": "layer_norm_eps",
    },
    defaults={
        "vocab_size": 50257,
        "max_position_embeddings": 2048,
        "hidden_size": 2048,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "attention_types": [[["global", "local"], 12]],
        "window_size": 256,
        "hidden_act": "gelu_new",
        "layer_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "eos_token_id": 50256,
    },
)
