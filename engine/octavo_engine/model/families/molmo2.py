"""The language model of Ai2's Molmo 2: Qwen3's layers, or OLMo 3's, under names of its own.

The names are those of published files; transformers writes the same. The rows of a second embedding, which stand for
parts of images, are not read.
"""

from __future__ import annotations

from dataclasses import replace

from octavo_engine.model.checkpoint.names import QKVLayout, StoredNames, TensorNames
from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import LayerNorms, LayerSpec, ModelSpec, QKNormSpec, RopeSpec

_TEXT = "model.transformer"
_LAYER = f"{_TEXT}.blocks.{{layer}}"
_ATTENTION, _UP = f"{_LAYER}.self_attn", f"{_LAYER}.mlp.ff_proj"
_NAMES = TensorNames(
    embedding=f"{_TEXT}.wte",
    norm=f"{_TEXT}.ln_f",
    before_mixer=f"{_LAYER}.attn_norm",
    after_mixer=f"{_LAYER}.attn_norm",
    before_feed_forward=f"{_LAYER}.ff_norm",
    after_feed_forward=f"{_LAYER}.ff_norm",
    query=f"{_ATTENTION}.att_proj",
    key=f"{_ATTENTION}.att_proj",
    value=f"{_ATTENTION}.att_proj",
    query_norm=f"{_ATTENTION}.q_norm",
    key_norm=f"{_ATTENTION}.k_norm",
    output=f"{_ATTENTION}.attn_out",
    attention=_ATTENTION,
    gate=_UP,
    up=_UP,
    gate_up_layout=QKVLayout(order=(1, 0)),
    down=f"{_LAYER}.mlp.ff_out",
)
_STORED = StoredNames(endings=((".wte.embedding", ".wte.weight"),), ignored=(f"{_TEXT}.wte.new_embedding",))


def _read(fields: Fields) -> ModelSpec:
    kind = fields.text("qk_norm_type")
    if kind not in ("qwen3", "olmo") or not fields.boolean("use_qk_norm", True):
        raise fields.wrong("qk_norm_type", kind, "is not supported, only qwen3 and olmo with use_qk_norm")
    norm, bias = reading.rms_norm(fields), fields.boolean("attention_bias", False)
    mixer = reading.attention(fields, qkv_bias=bias, qk_norm=QKNormSpec(norm, per_head=kind == "qwen3"))
    unscaled = mixer if mixer.rope is None else replace(mixer, rope=RopeSpec(mixer.rope.theta))
    scaled, every = set(fields.integers("rope_scaling_layers")), not fields.has("rope_scaling_layers")
    after = LayerNorms(after_mixer=norm, after_feed_forward=norm)
    norms = after if fields.boolean("norm_after", False) else reading.norms_before(norm)
    layers = tuple(
        LayerSpec(mixer=mixer if every or number in scaled else unscaled, feed_forward=reading.mlp(fields), norms=norms)
        for number in range(reading.num_layers(fields))
    )
    return reading.model(fields, MOLMO2_TEXT.architecture, layers, norm=norm, names=_NAMES, stored_names=_STORED)


MOLMO2_TEXT = Family(
    architecture="Molmo2TextForCausalLM",
    model_type="molmo2_text",
    read=_read,
    aliases={"qkv_bias": "attention_bias", "layer_norm_eps": "rms_norm_eps"},
    defaults={
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 36864,
        "qk_norm_type": "qwen3",
    },
)
