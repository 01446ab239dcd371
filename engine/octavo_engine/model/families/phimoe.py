"""Phi-3.5-MoE of Microsoft (arXiv 2404.14219): Mistral with LayerNorm, and experts in every layer.

SparseMixer (arXiv 2409.12136) chooses two experts for each token, one after the other, whatever `num_experts_per_tok`
says, as in transformers.
"""

from __future__ import annotations

from dataclasses import replace

from octavo_engine.model.families import mixtures, reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.families.mixtral import MIXTRAL_NAMES
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import HeadSpec, LayerSpec, ModelSpec, RouterSpec


def _read(fields: Fields) -> ModelSpec:
    norm = reading.layer_norm(fields, bias=True, eps="rms_norm_eps")
    bias, jitter = fields.boolean("attention_bias", False), fields.number("router_jitter_noise", 0, 1)
    fields = Fields(fields.origin, {**fields.values, "num_experts_per_tok": 2}, read=fields.read)
    router = RouterSpec(scores="sparsemixer", jitter=jitter)
    mixer = reading.attention(fields, qkv_bias=bias, output_bias=bias, window=reading.window(fields))
    if mixer.rope is not None and mixer.rope.kind == "longrope":  # transformers uses the short factors for all
        mixer = reading.with_rope(mixer, recomputed=True, long_factors=mixer.rope.factors)
    layer = LayerSpec(
        mixer=mixer,
        feed_forward=mixtures.experts(fields, router, count="num_local_experts", size="intermediate_size"),
        norms=reading.norms_before(norm),
    )
    head = HeadSpec(fields.boolean("tie_word_embeddings", False), bias=fields.boolean("lm_head_bias", False))
    layers = reading.repeated(fields, layer)
    return reading.model(fields, PHIMOE.architecture, layers, norm=norm, head=head, names=MIXTRAL_NAMES)


PHIMOE = Family(
    architecture="PhimoeForCausalLM",
    model_type="phimoe",
    read=_read,
    defaults={
        "num_key_value_heads": 8,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        "max_position_embeddings": 131072,
        "num_local_experts": 16,
        "num_experts_per_tok": 2,
        "router_jitter_noise": 0.01,
        "eos_token_id": 2,
    },
)
PHIMOE_PUBLISHED = replace(PHIMOE, architecture="PhiMoEForCausalLM")
"""The class that Microsoft's files name; transformers finds its own by `model_type`."""
