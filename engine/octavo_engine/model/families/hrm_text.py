"""HRM-Text (arXiv 2506.21734): Llama's layers in two stacks that run in turn, several times, over two vectors of each
token. Attention has an output gate. Prompts are computed causally, not as the prefix of a prefix LM."""

from __future__ import annotations

import logging
from dataclasses import replace
from itertools import product

from octavo_engine.model.checkpoint.names import QKVLayout, StoredNames, TensorNames
from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import LayerSpec, ModelSpec, OutputGateSpec, StackSpec

log = logging.getLogger(__name__)
_QKV, _OUT = "model.layers.{layer}.attn.gqkv_proj", "model.layers.{layer}.attn.o_proj"
_UP, _LAYOUT = "model.layers.{layer}.mlp.gate_up_proj", QKVLayout(order=(3, 0, 1, 2))
_NAMES = TensorNames(
    modules=((".self_attn.", ".attn."),),
    separate=(
        (".gqkv_proj", (".gate_proj", ".q_proj", ".k_proj", ".v_proj")),
        (".gate_up_proj", (".gate_proj", ".up_proj")),
    ),
    query=_QKV,
    key=_QKV,
    value=_QKV,
    output_gate=_QKV,
    output=_OUT,
    gate=_UP,
    up=_UP,
    qkv_layout=_LAYOUT,
)
_GATE = OutputGateSpec(with_query=True)


def _read(fields: Fields) -> ModelSpec:
    high, low = fields.integer("H_cycles", 1, 64, default=2), fields.integer("L_cycles", 1, 64, default=3)
    size = fields.integer("num_layers_per_stack", 1, 1024, default=fields.values["num_hidden_layers"])
    if size * (low + 1) * high > 4096:
        raise fields.wrong("H_cycles", high, f"runs {size} layers more than 4096 times in all")
    reading.refuse_if_true(fields, "attention_bias", "mlp_bias")
    if fields.boolean("prefix_lm", True):
        log.warning("%s: prefix_lm: attention is causal in prompts, as without token_type_ids", fields.origin)
    norm = reading.rms_norm(fields, weight=False)
    mixer = reading.attention(fields.without("num_key_value_heads"), output_gate=_GATE)  # unread by transformers
    layer = LayerSpec(mixer=mixer, feed_forward=reading.mlp(fields), norms=reading.norms_before(norm))
    layers: list[LayerSpec] = []
    for is_low, number in product([*[True] * low, False] * high, range(size)):
        stack = StackSpec(gives_low=is_low, first=number == 0, norm=norm if number == size - 1 else None)
        source = number if is_low else low * size + number
        layers.append(replace(layer, stack=stack, weights_of_layer=source if source < len(layers) else None))
    of_stacks = product((("L", 0), ("H", low * size)), range(size))
    renamed = ((f"model.{of}_module.layers.{n}.", f"model.layers.{first + n}.") for (of, first), n in of_stacks)
    spec = reading.model(fields, HRM_TEXT.architecture, tuple(layers), norm=None, names=_NAMES)
    std = fields.number("initializer_range", 1e-6, 1, default=0.02)
    scale = fields.number("embedding_scale", 0, 1e6, default=1 / std)
    return replace(spec, stored_names=StoredNames(renamed=tuple(renamed)), embedding_scale=scale)


HRM_TEXT: Family = Family(
    architecture="HrmTextForCausalLM",
    model_type="hrm_text",
    read=_read,
    defaults={
        "num_hidden_layers": 16,
        "hidden_act": "silu",
        "head_dim": 128,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
    },
)
