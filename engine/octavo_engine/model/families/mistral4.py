"""Mistral Small 4: DeepSeek V3 with softmax scores in the router, and queries that grow with their position."""

from __future__ import annotations

from dataclasses import replace

from octavo_engine.model.checkpoint.names import TensorNames
from octavo_engine.model.families import latent, mixtures, reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.families.ministral import query_scaling
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import ExpertGroups, LayerSpec, ModelSpec, RouterSpec

_EXPERTS = "model.layers.{layer}.mlp.experts"
_NAMES = TensorNames(
    expert_gate=f"{_EXPERTS}.gate_up_proj",
    expert_up=f"{_EXPERTS}.gate_up_proj",
    expert_down=f"{_EXPERTS}.down_proj",
    expert_layout="rows",
)


def _read(fields: Fields) -> ModelSpec:
    norm = reading.rms_norm(fields)
    mixer = latent.attention(_without_share(fields), interleaved=fields.boolean("rope_interleave", True))
    count, kept = (fields.integer(name, 1, 1 << 16) for name in ("n_group", "topk_group"))
    router = RouterSpec(
        scores="softmax",
        groups=None if count == 1 else ExpertGroups(count=count, kept=kept, best=2),
        renormalize=fields.boolean("norm_topk_prob", True),
        sum_offset=1e-20,
        scale=fields.number("routed_scaling_factor", 1e-6, 1e6),
    )
    shared = mixtures.shared(fields, "n_shared_experts")
    moe = mixtures.experts(fields, router, count="n_routed_experts", shared=shared)
    feed_forward = mixtures.after_dense(fields, moe)
    layers = tuple(
        LayerSpec(
            mixer=replace(mixer, query_scaling=query_scaling(fields)),
            feed_forward=feed_forward(layer),
            norms=reading.norms_before(norm),
        )
        for layer in range(reading.num_layers(fields))
    )
    return reading.model(fields, MISTRAL4.architecture, layers, norm=norm, names=_NAMES)


def _without_share(fields: Fields) -> Fields:
    """Return `fields` without `partial_rotary_factor`, which has to agree with `qk_rope_head_dim`.

    It may stand in the object about RoPE, or beside it; beside `rope_parameters` it has no effect.
    """
    name, share = ("rope_scaling" if fields.has("rope_scaling") else "rope_parameters"), "partial_rotary_factor"
    rope = fields.mapping(name) or Fields(fields.origin, {})
    holder = fields if name == "rope_scaling" and not rope.has(share) else rope
    plain_dim, rotary_dim = (fields.integer(f"qk_{part}_head_dim", 1, 1024) for part in ("nope", "rope"))
    head_dim = plain_dim + rotary_dim
    given = holder.number(share, 0, 1, default=rotary_dim / head_dim)
    if int(head_dim * given) != rotary_dim:
        raise holder.wrong(share, given, f"is not qk_rope_head_dim {rotary_dim} of heads of {head_dim}")
    if int((own := fields.integer("head_dim", 1, 1 << 16, default=head_dim)) * given) <= 2 < rotary_dim:
        raise fields.wrong("head_dim", own, f"has too few dimensions that rotate for qk_rope_head_dim {rotary_dim}")
    kept = rope.without(share).values
    return replace(fields, values={**fields.values, name: kept}).without(share)


MISTRAL4 = Family(
    architecture="Mistral4ForCausalLM",
    model_type="mistral4",
    read=_read,
    defaults={
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 1048576,
        "intermediate_size": 12288,
        "moe_intermediate_size": 2048,
        "n_shared_experts": 1,
        "n_routed_experts": 128,
        "num_experts_per_tok": 4,
        "routed_scaling_factor": 1.0,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 0,
        "kv_lora_rank": 256,
        "q_lora_rank": 1024,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 64,
        "v_head_dim": 128,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 128.0,
            "original_max_position_embeddings": 8192,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "llama_4_scaling_beta": 0.1,
        },
        "tie_word_embeddings": False,
        "eos_token_id": 2,
    },
    nullable=frozenset({"q_lora_rank"}),
)
