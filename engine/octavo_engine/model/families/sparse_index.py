"""DeepSeek V3.2 and GLM-5: DeepSeek V3 with an indexer that chooses which tokens each query attends to.

The indexer chooses `index_topk` tokens. It is not computed here: `index_topk` is the longest context, in which it would
choose all tokens.
"""

from __future__ import annotations

from dataclasses import replace

from octavo_engine.model.families import deepseek, reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.names import StoredNames
from octavo_engine.model.spec import ModelSpec


def read(fields: Fields, architecture: str) -> ModelSpec:
    """Return a model of DeepSeek V3's shape whose layers have an indexer."""
    reading.refuse_if_true(fields, "mlp_bias")
    spec = deepseek.read_by_type(fields, architecture, fields.integer("first_k_dense_replace", 0, 1 << 16))
    indexers = tuple(f"model.layers.{layer}.self_attn.indexer." for layer in range(spec.num_layers))
    longest = min(spec.max_position, fields.integer("index_topk", 1, 1 << 30))
    return replace(spec, max_position=longest, stored_names=StoredNames(ignored=indexers))


DEFAULTS = {**deepseek.DEFAULTS, "n_routed_experts": 256, "first_k_dense_replace": 3, "index_topk": 2048}
DEEPSEEK_V32: Family = Family(
    architecture="DeepseekV32ForCausalLM",
    model_type="deepseek_v32",
    read=lambda fields: read(fields, DEEPSEEK_V32.architecture),
    defaults={**DEFAULTS, "max_position_embeddings": 163840, "intermediate_size": 18432},
)
GLM_MOE_DSA: Family = Family(
    architecture="GlmMoeDsaForCausalLM",
    model_type="glm_moe_dsa",
    read=lambda fields: read(fields, GLM_MOE_DSA.architecture),
    defaults={
        **DEFAULTS,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 202752,
        "intermediate_size": 12288,
        "q_lora_rank": 2048,
        "qk_nope_head_dim": 192,
        "v_head_dim": 256,
        "n_group": 1,
        "topk_group": 1,
    },
)
