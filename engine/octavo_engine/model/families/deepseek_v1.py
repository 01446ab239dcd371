"""DeepSeekMoE 16B (arXiv 2401.06066), DeepSeek's first mixture: Llama's attention, and experts beside shared ones."""

from __future__ import annotations

from octavo_engine.model.families import mixtures, reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import FeedForward, LayerSpec, ModelSpec, RouterSpec


def _read(fields: Fields) -> ModelSpec:
    if fields.text("scoring_func") != "softmax":
        raise fields.wrong("scoring_func", fields.values["scoring_func"], "is not supported, only softmax")
    norm, bias = reading.rms_norm(fields), fields.boolean("attention_bias", False)
    layers = tuple(
        LayerSpec(
            mixer=reading.attention(fields, qkv_bias=bias, output_bias=bias),
            feed_forward=feed_forward,
            norms=reading.norms_before(norm),
        )
        for feed_forward in _feed_forwards(fields)
    )
    return reading.model(fields, DEEPSEEK.architecture, layers, norm=norm)


def _feed_forwards(fields: Fields) -> list[FeedForward]:
    """Return each layer's feed-forward: from `first_k_dense_replace` on, every `moe_layer_freq`-th has experts."""
    dense, layers = reading.mlp(fields), range(reading.num_layers(fields))
    first, step = fields.integer("first_k_dense_replace", 0, 1 << 16), fields.integer("moe_layer_freq", 1, 1 << 16)
    router = RouterSpec(scores="softmax", renormalize=fields.boolean("norm_topk_prob", False), sum_offset=1e-20)
    beside = mixtures.shared(fields, "n_shared_experts")
    moe = mixtures.experts(fields, router, count="n_routed_experts", shared=beside)
    return [moe if layer >= first and layer % step == 0 else dense for layer in layers]


DEEPSEEK = Family(
    architecture="DeepseekForCausalLM",
    model_type="deepseek",
    read=_read,
    defaults={
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 2048,
        "moe_intermediate_size": 1407,
        "num_experts_per_tok": 6,
        "n_routed_experts": 64,
        "n_shared_experts": 0,
        "first_k_dense_replace": 0,
        "moe_layer_freq": 1,
        "scoring_func": "softmax",
        "eos_token_id": 100001,
    },
)
