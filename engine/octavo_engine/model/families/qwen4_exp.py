"""Qwen4 Exp: Qwen3.5's mixture of experts with hyper-connections, and an indexer that chooses blocks of tokens.

The indexer chooses `indexer_budget` tokens in complete blocks for each query, beside the last, incomplete block. It is
not computed here: contexts are limited to those in which it would choose all tokens.
"""

from __future__ import annotations

from dataclasses import replace

from octavo_engine.model.families import delta_net, reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.families.multimodal import STORED_NAMES
from octavo_engine.model.families.qwen3_next import QWEN3_5_MOE
from octavo_engine.model.families.qwen_layers import NAMES, experts, mixers, with_gates
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import GatedConnectionsSpec, LayerNorms, LayerSpec, ModelSpec

_LAYER = "model.layers.{layer}"
_NAMES = replace(
    NAMES,
    mixer_connections=f"{_LAYER}.attn_hyper_connection",
    feed_forward_connections=f"{_LAYER}.mlp_hyper_connection",
    head_connections="model.hyper_connection_mixer",
)


def _read(fields: Fields) -> ModelSpec:
    if fields.integers("ple_layer_ids"):
        raise fields.wrong("ple_layer_ids", fields.values["ple_layer_ids"], "is not supported: no layer reads n-grams")
    norm = reading.rms_norm(fields, weight_offset=1.0)
    connections = GatedConnectionsSpec(
        count=fields.integer("hc_count", 2, 64), rank=fields.integer("hc_lowrank", 1, 1 << 16), norm=norm
    )
    attends = delta_net.attends(fields, delta_net.last_of_each_interval(fields), "indexed_attention")
    gate = fields.text("output_gate_type", default=fields.text("hidden_act"))
    if gate not in ("sigmoid", "silu"):
        raise fields.wrong("output_gate_type", gate, "is not supported, only sigmoid and silu")
    moe = experts(fields, renormalize=fields.boolean("norm_topk_prob", True))
    layers = tuple(
        LayerSpec(mixer=mixer, feed_forward=moe, norms=LayerNorms(), connections=connections)
        for mixer in mixers(fields, norm, attends, gate_activation=gate)
    )
    names = with_gates(fields, _NAMES)
    indexers = tuple(f"model.layers.{layer}.self_attn.indexer." for layer, each in enumerate(attends) if each)
    stored = replace(STORED_NAMES, ignored=(*STORED_NAMES.ignored, *indexers))
    spec = reading.model(fields, QWEN4_EXP.architecture, layers, norm=None, names=names, stored_names=stored)
    return replace(spec, max_position=min(spec.max_position, _longest(fields))) if indexers else spec


def _longest(fields: Fields) -> int:
    """Return the longest context that is attended to in full: the indexer chooses complete blocks alone."""
    budget, size = (fields.integer(f"indexer_{name}", 1, 1 << 30) for name in ("budget", "compress_ratio"))
    if budget % size:
        raise fields.wrong("indexer_budget", budget, f"is not a multiple of indexer_compress_ratio {size}")
    return budget + size - 1


QWEN4_EXP = Family(
    architecture="Qwen4ExpForCausalLM",
    model_type="qwen4_exp_text",
    read=_read,
    defaults={
        **{name: value for name, value in QWEN3_5_MOE.defaults.items() if name != "partial_rotary_factor"},
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "hc_count": 4,
        "hc_lowrank": 320,
    },
)
