"""OLMoE (arXiv 2409.02060) and FlexOlmo (arXiv 2507.07024) of Ai2: OLMo 2's attention, and experts in every layer.

OLMoE has norms before attention and feed-forward, FlexOlmo after them.
"""

from __future__ import annotations

from octavo_engine.model.families import mixtures, reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import LayerNorms, LayerSpec, ModelSpec, QKNormSpec, RouterSpec


def _read(fields: Fields, architecture: str, *, norms_after: bool) -> ModelSpec:
    norm, bias = reading.rms_norm(fields), fields.boolean("attention_bias", False)
    after = LayerNorms(after_mixer=norm, after_feed_forward=norm)
    clip = reading.scale(fields, "clip_qkv") if fields.has("clip_qkv") and not norms_after else None
    qk_norm = QKNormSpec(norm, per_head=False)
    router = RouterSpec(scores="softmax", renormalize=fields.boolean("norm_topk_prob", False))
    layer = LayerSpec(
        mixer=reading.attention(fields, qkv_bias=bias, output_bias=bias, qk_norm=qk_norm, clip=clip),
        feed_forward=mixtures.experts(fields, router, size="intermediate_size"),
        norms=after if norms_after else reading.norms_before(norm),
    )
    return reading.model(fields, architecture, reading.repeated(fields, layer), norm=norm)


OLMOE: Family = Family(
    architecture="OlmoeForCausalLM",
    model_type="olmoe",
    read=lambda fields: _read(fields, OLMOE.architecture, norms_after=False),
    defaults={
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 4096,
        "num_experts_per_tok": 8,
        "num_experts": 64,
        "eos_token_id": 50279,
    },
)
FLEX_OLMO: Family = Family(
    architecture="FlexOlmoForCausalLM",
    model_type="flex_olmo",
    read=lambda fields: _read(fields, FLEX_OLMO.architecture, norms_after=True),
    defaults={
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 500000.0,
        "max_position_embeddings": 4096,
        "num_experts_per_tok": 5,
        "num_experts": 7,
        "eos_token_id": 100257,
    },
)
