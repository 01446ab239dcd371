"""DeepSeek V2 (arXiv 2405.04434): V3's latent attention, and experts that a softmax router chooses."""

from __future__ import annotations

from octavo_engine.model.families import mixtures, reading
from octavo_engine.model.families.deepseek import DEFAULTS, latent_model
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import ExpertGroups, FeedForward, ModelSpec, MoESpec, RouterSpec


def softmax_experts(fields: Fields) -> tuple[MoESpec, FeedForward]:
    """Return the experts of DeepSeek V2, with its softmax router, and the feed-forward of layers without experts."""
    method, bias = fields.text("topk_method"), fields.boolean("mlp_bias", False)
    if method not in ("greedy", "group_limited_greedy"):
        raise fields.wrong("topk_method", method, "is not supported, only greedy and group_limited_greedy")
    groups = None
    if method == "group_limited_greedy":
        count, kept = (fields.integer(name, 1, 1 << 16) for name in ("n_group", "topk_group"))
        groups = ExpertGroups(count=count, kept=kept, best=1)
    scale = fields.number("routed_scaling_factor", 1e-6, 1e6)
    router = RouterSpec(scores="softmax", groups=groups, scale=scale, in_float32=True)
    shared = mixtures.shared(fields, "n_shared_experts", bias=bias, output_bias=bias)
    moe = mixtures.experts(fields, router, count="n_routed_experts", shared=shared)
    return moe, reading.mlp(fields, bias=bias, output_bias=bias)


def _read_v2(fields: Fields) -> ModelSpec:
    (moe, dense), first = softmax_experts(fields), fields.integer("first_k_dense_replace", 0, 1 << 16)
    parts = [dense if layer < first else moe for layer in range(reading.num_layers(fields))]
    return latent_model(fields, DEEPSEEK_V2.architecture, parts, interleaved=True)


DEEPSEEK_V2 = Family(
    architecture="DeepseekV2ForCausalLM",
    model_type="deepseek_v2",
    read=_read_v2,
    defaults={
        **{name: value for name, value in DEFAULTS.items() if name not in ("n_group", "topk_group")},
        "max_position_embeddings": 2048,
        "intermediate_size": 11008,
        "moe_intermediate_size": 1407,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "routed_scaling_factor": 1.0,
        "first_k_dense_replace": 0,
        "topk_method": "greedy",
        "eos_token_id": 2,
    },
    nullable=frozenset({"q_lora_rank"}),
)
