"""dots3: latent attention with a sliding window or with DeepSeek V3.2's indexer, and DeepSeek V3's experts.

Layers with a window have sizes and a RoPE of their own. Each head's result has a gate.
"""

from __future__ import annotations

from dataclasses import replace

from octavo_engine.model.checkpoint.names import StoredNames, TensorNames
from octavo_engine.model.families import latent, mixtures, reading, sparse_index
from octavo_engine.model.families.dots3_layers import fields_of_layers
from octavo_engine.model.families.family import Family
from octavo_engine.model.families.moe_layer_freq import with_mlp_layer_types
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import LatentAttentionSpec, LayerSpec, ModelSpec, OutputGateSpec

_NAMES = TensorNames(output_gate="model.layers.{layer}.self_attn.g_proj")


def _read(fields: Fields) -> ModelSpec:
    norm = reading.rms_norm(fields)
    shared = mixtures.shared(fields, "n_shared_experts", "shared_experts_intermediate_size")
    router = mixtures.sigmoid_router(fields)
    moe = mixtures.experts(fields, router, count="n_routed_experts", shared=shared)
    feed_forward = mixtures.by_type(with_mlp_layer_types(fields), moe, 1)
    kinds = fields_of_layers(fields)
    layers = tuple(
        LayerSpec(mixer=_mixer(own, kind), feed_forward=feed_forward(layer), norms=reading.norms_before(norm))
        for layer, (kind, own) in enumerate(kinds)
    )
    spec = reading.model(fields, DOTS3_NOTE.architecture, layers, norm=norm, names=_NAMES)
    further = f"model.layers.{spec.num_layers}."  # the layer of multi-token prediction
    return replace(spec, stored_names=StoredNames(ignored=(further,)))


def _mixer(fields: Fields, kind: str) -> LatentAttentionSpec:
    """Return latent attention whose latents are scaled as if they were as wide as the residual stream."""
    spec, hidden = latent.attention(fields, interleaved=True), reading.hidden_size(fields)
    rank, indexed = fields.integer("q_lora_rank", 1, 1 << 16), kind == "indexed_attention"
    return replace(
        spec,
        index=sparse_index.token_index(fields, spec.rotary_dim, interleaved=True) if indexed else None,
        scale=spec.key_dim**-0.5,
        norm=reading.rms_norm(fields),
        latent_scales=((hidden / rank) ** 0.5, (hidden / spec.latent) ** 0.5),
        output_gate=OutputGateSpec(per_head=True),
        rotated_norm=True,
        window=fields.integer("sliding_window", 1, 1 << 30) if kind == "sliding_attention" else None,
    )


DOTS3_NOTE = Family(
    architecture="Dots3NoteForCausalLM",
    model_type="dots3_note_text",
    read=_read,
    aliases={
        "num_local_experts": "n_routed_experts",
        "moe_shared_expert_intermediate_size": "shared_experts_intermediate_size",
        "sliding_window_size": "sliding_window",
    },
    defaults={
        **sparse_index.DEFAULTS,
        "first_k_dense_replace": 1,
        "q_lora_rank": 1024,
        "moe_intermediate_size": 1536,
        "shared_experts_intermediate_size": 1536,
        "routed_scaling_factor": 1.0,
        "n_group": 1,
        "topk_group": 1,
        "sliding_window": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 8e7,
        "max_position_embeddings": 524288,
        "eos_token_id": 151668,
    },
)
