"""MiniMax M3: MiniMax M2 with a shared expert, gpt-oss's gate, and an indexer that chooses blocks of keys.

The indexer chooses `index_topk_blocks` blocks of `index_block_size` tokens for each query. It is not computed here: the
longest context is that many tokens, of which it would choose all.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from octavo_engine.model.checkpoint.names import StoredNames, TensorNames
from octavo_engine.model.families import mixtures, reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import LayerSpec, MLPSpec, ModelSpec, QKNormSpec, RouterSpec, SharedExpertSpec

_LAYER = "model.layers.{layer}"
_PUBLISHED_MOE = f"{_LAYER}.block_sparse_moe"
_NAMES = TensorNames(
    gate=f"{_LAYER}.mlp.gate_up_proj",
    up=f"{_LAYER}.mlp.gate_up_proj",
    expert_gate=f"{_LAYER}.mlp.experts.gate_up_proj",
    expert_up=f"{_LAYER}.mlp.experts.gate_up_proj",
    expert_down=f"{_LAYER}.mlp.experts.down_proj",
    shared_gate=f"{_LAYER}.mlp.shared_experts.gate_up_proj",
    shared_up=f"{_LAYER}.mlp.shared_experts.gate_up_proj",
)
"""The names in files of the language model alone, which transformers 5 writes."""
_PUBLISHED_NAMES = TensorNames(
    modules=((".mlp.", ".block_sparse_moe."),),
    router=f"{_PUBLISHED_MOE}.gate",
    correction_bias=f"{_PUBLISHED_MOE}.e_score_correction_bias",
    expert_gate=f"{_PUBLISHED_MOE}.experts.{{expert}}.w1",
    expert_up=f"{_PUBLISHED_MOE}.experts.{{expert}}.w3",
    expert_down=f"{_PUBLISHED_MOE}.experts.{{expert}}.w2",
    shared_gate=f"{_PUBLISHED_MOE}.shared_experts.gate_proj",
    shared_up=f"{_PUBLISHED_MOE}.shared_experts.up_proj",
    shared_down=f"{_PUBLISHED_MOE}.shared_experts.down_proj",
)
_INDEX = {"sparse_block_size": "index_block_size", "sparse_topk_blocks": "index_topk_blocks"}


def _as_transformers_names(fields: Fields) -> Fields:
    """Return `fields` with those of published files under the names of transformers' class."""
    sparse = fields.mapping("sparse_attention_config") or Fields(fields.origin, {})
    values = {name: sparse.values[own] for own, name in _INDEX.items() if sparse.has(own)}
    if (chosen := sparse.integers("sparse_attention_freq")) and not fields.has("layer_types"):
        values["layer_types"] = ["minimax_m3_sparse" if each else "full_attention" for each in chosen]
    if (experts := fields.integers("moe_layer_freq")) and not fields.has("mlp_layer_types"):
        values["mlp_layer_types"] = ["sparse" if each else "dense" for each in experts]
    act = fields.text("hidden_act").replace("swigluoai", "silu")  # the gate is made of swiglu_alpha and swiglu_limit
    return replace(fields, values={**fields.values, **values, "hidden_act": act})


def _read(fields: Fields, architecture: str, names: TensorNames) -> ModelSpec:
    fields = _as_transformers_names(fields)
    norm = reading.rms_norm(fields, weight_offset=1.0)
    # As in transformers, `rotary_dim` has no effect: `partial_rotary_factor` says which share of a head rotates.
    mixer = reading.attention(fields, partial_rotary=True, qk_norm=QKNormSpec(norm))
    parts = _feed_forwards(fields)
    layers = tuple(LayerSpec(mixer=mixer, feed_forward=part, norms=reading.norms_before(norm)) for part in parts)
    spec = reading.model(fields, architecture, layers, norm=norm, names=names)
    kinds = reading.layer_types(fields, {"full_attention", "minimax_m3_sparse"}, lambda _: "full_attention")
    if "minimax_m3_sparse" not in kinds:
        return spec
    blocks, size = (fields.integer(f"index_{name}", 1, 1 << 20) for name in ("topk_blocks", "block_size"))
    indexers = tuple(
        f"model.layers.{layer}.self_attn.index{end}" for layer in range(spec.num_layers) for end in ("er.", "_")
    )
    longest = min(spec.max_position, blocks * size)
    return replace(spec, max_position=longest, stored_names=StoredNames(ignored=indexers))


def _feed_forwards(fields: Fields) -> list[Any]:
    limit, alpha = fields.number("swiglu_limit", 1e-3, 1e6), fields.number("swiglu_alpha", 0, 1e3)
    gate: dict[str, Any] = {"limit": limit, "alpha": alpha}

    def dense(size: str) -> MLPSpec:
        return MLPSpec(intermediate_size=reading.intermediate_size(fields, size), **gate)

    router = RouterSpec(
        scores="sigmoid", correction_bias=True, renormalize=True, scale=reading.scale(fields, "routed_scaling_factor")
    )
    shared = SharedExpertSpec(mlp=dense("shared_intermediate_size"))
    moe = mixtures.experts(fields, router, count="num_local_experts", size="intermediate_size", shared=shared, **gate)
    types = mixtures.layer_types(fields, 0)
    return [moe if kind == "sparse" else dense("dense_intermediate_size") for kind in types]


def _family(architecture: str, names: TensorNames) -> Family:
    return Family(
        architecture=architecture,
        model_type="minimax_m3_vl_text",
        read=lambda fields: _read(fields, architecture, names),
        defaults=_DEFAULTS,
    )


_DEFAULTS = {
    "num_key_value_heads": 4,
    "head_dim": 128,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 5e6,
    "max_position_embeddings": 524288,
    "intermediate_size": 3072,
    "dense_intermediate_size": 12288,
    "shared_intermediate_size": 3072,
    "num_experts_per_tok": 4,
    "num_local_experts": 128,
    "routed_scaling_factor": 2.0,
    "swiglu_alpha": 1.702,
    "swiglu_limit": 7.0,
    "index_block_size": 128,
    "index_topk_blocks": 16,
}
MINIMAX_M3 = _family("MiniMaxM3VLForCausalLM", _NAMES)
MINIMAX_M3_PUBLISHED = _family("MiniMaxM3SparseForCausalLM", _PUBLISHED_NAMES)
"""The language model in the files of MiniMaxM3SparseForConditionalGeneration."""
