"""OLMo Hybrid of Ai2: Gated DeltaNet in three of four layers, and OLMo 3's attention in the others.

Layers with Gated DeltaNet have norms before mixer and feed-forward, those with attention after them.
"""

from __future__ import annotations

from typing import Any

from octavo_engine.model.checkpoint.names import StoredNames, TensorNames
from octavo_engine.model.families import delta_net, reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import LayerNorms, LayerSpec, ModelSpec, QKNormSpec

_LINEAR = "model.layers.{layer}.linear_attn"
_NAMES = TensorNames(
    delta_query=f"{_LINEAR}.q_proj",
    delta_key=f"{_LINEAR}.k_proj",
    delta_value=f"{_LINEAR}.v_proj",
    delta_gate=f"{_LINEAR}.g_proj",
    delta_strength=f"{_LINEAR}.b_proj",
    delta_decay=f"{_LINEAR}.a_proj",
    delta_query_conv=f"{_LINEAR}.q_conv1d",
    delta_key_conv=f"{_LINEAR}.k_conv1d",
    delta_value_conv=f"{_LINEAR}.v_conv1d",
    delta_norm=f"{_LINEAR}.o_norm",
    delta_output=f"{_LINEAR}.o_proj",
)
_RENAMED_NORMS = {
    True: {"feedforward_layer_norm": "post_attention_layernorm"},
    False: {"attention_layer_norm": "input_layernorm", "feedforward_layer_norm": "post_attention_layernorm"},
}
"""The names of norms in files that transformers 5 writes, and those of its modules, for layers with attention (True)
and for the others."""


def _read(fields: Fields) -> ModelSpec:
    norm, bias = reading.rms_norm(fields), fields.boolean("attention_bias", False)
    heads = fields.integer("num_attention_heads", 1, 1 << 16)
    fields = fields.with_defaults(linear_num_key_heads=heads, linear_num_value_heads=heads)
    key_heads = fields.integer("linear_num_key_heads", 1, 1 << 12)
    fields = fields.with_defaults(linear_key_head_dim=int(0.75 * reading.hidden_size(fields) / key_heads))
    fields = fields.with_defaults(linear_value_head_dim=2 * fields.integer("linear_key_head_dim", 1, 1 << 12))
    most = 2.0 if fields.boolean("linear_allow_neg_eigval", True) else 1.0
    linear = delta_net.mixer(fields, norm_eps=1e-5, most_strength=most)
    no_rope: dict[str, Any] = {"rope": None} if _has_no_rope(fields) else {}
    attention = reading.attention(
        fields.with_defaults(rope_theta=10000.0),
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=QKNormSpec(norm, per_head=False),
        **no_rope,
    )
    mlp = reading.mlp(fields)
    attending = LayerSpec(
        mixer=attention, feed_forward=mlp, norms=LayerNorms(after_mixer=norm, after_feed_forward=norm)
    )
    other = LayerSpec(mixer=linear, feed_forward=mlp, norms=reading.norms_before(norm))
    last = reading.num_layers(fields) - 1
    attends = delta_net.attends(fields, default=lambda layer: layer % 4 == 3 or layer == last < 3)
    stored = StoredNames(
        renamed=tuple(
            (f"model.layers.{layer}.{stored}.", f"model.layers.{layer}.{name}.")
            for layer, kind in enumerate(attends)
            for stored, name in _RENAMED_NORMS[kind].items()
        )
    )
    layers = tuple(attending if kind else other for kind in attends)
    return reading.model(fields, OLMO_HYBRID.architecture, layers, norm=norm, names=_NAMES, stored_names=stored)


def _has_no_rope(fields: Fields) -> bool:
    """Return True if attention has no RoPE, as in published models: its base is null."""
    parameters = fields.mapping("rope_parameters")
    if parameters is None:
        return not fields.has("rope_theta")
    return parameters.values.get("rope_theta", ...) is None


OLMO_HYBRID = Family(
    architecture="OlmoHybridForCausalLM",
    model_type="olmo_hybrid",
    read=_read,
    nullable=frozenset({"rope_theta"}),
    defaults={
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 65536,
        "linear_conv_kernel_dim": 4,
        "eos_token_id": 100257,
    },
)
