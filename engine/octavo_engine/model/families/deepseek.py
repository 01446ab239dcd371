"""DeepSeek V3 and R1 (arXiv 2412.19437), and GLM-4.7-Flash, which has V3's shape: Llama with
latent attention, which caches one vector for each token, and with experts in all but the first layers."""

from __future__ import annotations

from octavo_engine.model.families import latent, mixtures, reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import FeedForward, LayerSpec, ModelSpec


def latent_model(fields: Fields, architecture: str, parts: list[FeedForward], *, interleaved: bool) -> ModelSpec:
    """Return a model with latent attention in all layers, and these feed-forwards."""
    norm, mixer = reading.rms_norm(fields), latent.attention(fields, interleaved=interleaved)
    layers = tuple(LayerSpec(mixer=mixer, feed_forward=part, norms=reading.norms_before(norm)) for part in parts)
    return reading.model(fields, architecture, layers, norm=norm)


def _read_v3(fields: Fields) -> ModelSpec:
    feed_forward = mixtures.after_dense(fields, mixtures.deepseek_experts(fields))
    parts = [feed_forward(layer) for layer in range(reading.num_layers(fields))]
    return latent_model(fields, DEEPSEEK_V3.architecture, parts, interleaved=fields.boolean("rope_interleave", True))


def read_by_type(fields: Fields, architecture: str, first_dense: int = 1) -> ModelSpec:
    """Return a model of DeepSeek V3's shape; `mlp_layer_types` or else `first_dense` says which layers are dense."""
    feed_forward = mixtures.by_type(fields, mixtures.deepseek_experts(fields), first_dense)
    parts = [feed_forward(layer) for layer in range(reading.num_layers(fields))]
    return latent_model(fields, architecture, parts, interleaved=fields.boolean("rope_interleave", True))


DEFAULTS = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "n_shared_experts": 1,
    "n_group": 8,
    "topk_group": 4,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "routed_scaling_factor": 2.5,
    "eos_token_id": 1,
}
DEEPSEEK_V3 = Family(
    architecture="DeepseekV3ForCausalLM",
    model_type="deepseek_v3",
    read=_read_v3,
    defaults={
        **DEFAULTS,
        "max_position_embeddings": 4096,
        "intermediate_size": 18432,
        "n_routed_experts": 256,
        "first_k_dense_replace": 3,
    },
    nullable=frozenset({"q_lora_rank"}),
)
GLM4_MOE_LITE: Family = Family(
    architecture="Glm4MoeLiteForCausalLM",
    model_type="glm4_moe_lite",
    read=lambda fields: read_by_type(fields, GLM4_MOE_LITE.architecture),
    defaults={
        **DEFAULTS,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 202752,
        "intermediate_size": 10240,
        "moe_intermediate_size": 1536,
        "n_routed_experts": 64,
        "q_lora_rank": 768,
        "qk_nope_head_dim": 192,
        "v_head_dim": 256,
        "n_group": 1,
        "topk_group": 1,
        "num_experts_per_tok": 4,
        "routed_scaling_factor": 1.8,
    },
    nullable=frozenset({"q_lora_rank"}),
)
