"""dots3: latent attention of two sizes, with windows or with an indexer that chooses tokens; DeepSeek V3's experts.

The indexer chooses `index_topk` of them. Contexts that are no longer are attended to in full, and these alone are
computed here: that is then the longest context.
"""

from __future__ import annotations

from dataclasses import replace

from octavo_engine.model.families import latent, mixtures, reading
from octavo_engine.model.families.dots3_layers import fields_of_layers
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.names import StoredNames, TensorNames
from octavo_engine.model.spec import LatentAttentionSpec, LayerSpec, ModelSpec, OutputGateSpec

_NAMES = TensorNames(output_gate="model.layers.{layer}.self_attn.g_proj")


def _read(fields: Fields) -> ModelSpec:
    norm = reading.rms_norm(fields)
    shared = mixtures.shared(fields, "n_shared_experts", "shared_experts_intermediate_size")
    router = mixtures.sigmoid_router(fields)
    moe = mixtures.experts(fields, router, count="n_routed_experts", shared=shared)
    feed_forward = mixtures.by_type(fields, moe, 1)
    kinds = fields_of_layers(fields)
    layers = tuple(
        LayerSpec(mixer=_mixer(own, kind), feed_forward=feed_forward(layer), norms=reading.norms_before(norm))
        for layer, (kind, own) in enumerate(kinds)
    )
    spec = reading.model(fields, DOTS3_NOTE.architecture, layers, norm=norm, names=_NAMES)
    indexed = [layer for layer, (kind, _) in enumerate(kinds) if kind == "indexed_attention"]
    ignored = tuple(f"model.layers.{layer}.self_attn.indexer." for layer in indexed)
    longest = fields.integer("index_topk", 1, 1 << 30) if indexed else spec.max_position
    further = f"model.layers.{spec.num_layers}."  # the layer that predicts a second token
    return replace(
        spec,
        max_position=min(spec.max_position, longest),
        stored_names=StoredNames(ignored=(*ignored, further)),
    )


def _mixer(fields: Fields, kind: str) -> LatentAttentionSpec:
    """Both latents are scaled as if they were as wide as the residual stream."""
    spec, hidden = latent.attention(fields, interleaved=True), reading.hidden_size(fields)
    rank = fields.integer("q_lora_rank", 1, 1 << 16)
    return replace(
        spec,
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
        "moe_intermediate_size": 1536,
        "shared_experts_intermediate_size": 1536,
        "n_shared_experts": 1,
        "n_routed_experts": 256,
        "num_experts_per_tok": 8,
        "routed_scaling_factor": 1.0,
        "n_group": 1,
        "topk_group": 1,
        "kv_lora_rank": 512,
        "q_lora_rank": 1024,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "index_topk": 2048,
        "sliding_window": 512,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "eos_token_id": 151668,
    },
)
