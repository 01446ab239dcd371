"""Llama-Nemotron of NVIDIA (arXiv 2411.19146, 2505.00949): Llama whose layers were chosen by a search.

`block_configs` says for each layer how many query heads share a key, how wide its feed-forward is, and which of the
two it does without.
"""

from __future__ import annotations

from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import AttentionSpec, LayerNorms, LayerSpec, MLPSpec, ModelSpec

_CHANGES = ("replace_with_linear", "sparsify", "window_length", "num_sink_tokens", "unshifted_sink")
"""Fields of a part with which it is computed in another way, as no published model's is."""
_MULTIPLE = 256
"""Widths of feed-forwards are rounded up to a multiple of this."""


def _read(fields: Fields) -> ModelSpec:
    norm, given = reading.rms_norm(fields), fields.values.get("block_configs")
    if not isinstance(given, list) or len(given) != reading.num_layers(fields):
        raise fields.wrong("block_configs", given, f"does not name {reading.num_layers(fields)} layers")
    layers = []
    for number, block in enumerate(given):
        own = Fields(fields.origin, {"": block}, f"block_configs[{number}]").mapping("")
        attention, mlp = (_part(own, name) if own is not None else None for name in ("attention", "ffn"))
        mixer, feed_forward = _mixer(fields, attention), _mlp(fields, mlp)
        norms = LayerNorms(
            before_mixer=None if mixer is None else norm, before_feed_forward=None if feed_forward is None else norm
        )
        layers.append(LayerSpec(mixer=mixer, feed_forward=feed_forward, norms=norms))
    return reading.model(fields, NEMOTRON_NAS.architecture, tuple(layers), norm=norm)


def _part(block: Fields, name: str) -> Fields | None:
    """Return the fields of a layer's attention or feed-forward; None: the layer has none."""
    part = block.mapping(name)
    if part is None:
        raise block.wrong(name, None, "is missing")
    for field in _CHANGES:
        if part.values.get(field):
            raise part.wrong(field, part.values[field], "is not supported")
    return None if part.boolean("no_op", False) else part


def _mixer(fields: Fields, part: Fields | None) -> AttentionSpec | None:
    if part is None:
        return None
    heads = fields.integer("num_attention_heads", 1, 1 << 16)
    shared = part.integer("n_heads_in_group", 1, heads)
    if heads % shared:
        raise part.wrong("n_heads_in_group", shared, f"does not divide num_attention_heads {heads}")
    bias = fields.boolean("attention_bias", False)
    own = fields.without("num_key_value_heads").with_defaults(num_key_value_heads=heads // shared)
    return reading.attention(own, qkv_bias=bias, output_bias=bias)


def _mlp(fields: Fields, part: Fields | None) -> MLPSpec | None:
    if part is None:
        return None
    width = int(2 * part.number("ffn_mult", 1e-3, 64) * reading.hidden_size(fields) / 3)
    bias = fields.boolean("mlp_bias", False)
    return reading.mlp(fields, intermediate_size=-(-width // _MULTIPLE) * _MULTIPLE, bias=bias, output_bias=bias)


NEMOTRON_NAS = Family(
    architecture="DeciLMForCausalLM",
    model_type="nemotron-nas",
    read=_read,
    defaults={
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 2048,
        "eos_token_id": 2,
    },
)
