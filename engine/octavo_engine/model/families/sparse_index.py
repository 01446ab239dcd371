"""DeepSeek V3.2 and GLM-5: DeepSeek V3 with an indexer that chooses which tokens each query attends to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from octavo_engine.model.checkpoint.names import StoredNames
from octavo_engine.model.families import deepseek, reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import LatentAttentionSpec, ModelSpec, TokenIndexSpec


def read(fields: Fields, architecture: str, kinds: Sequence[str] = (), **values: Any) -> ModelSpec:
    """Return a model of DeepSeek V3's shape whose layers choose tokens; `values` are fields of TokenIndexSpec.

    `kinds` says for each layer whether it has an indexer, `full`, or uses the last one's choice, `shared`; empty: all
    layers have one.
    """
    spec = deepseek.read_by_type(fields, architecture, fields.integer("first_k_dense_replace", 0, 1 << 16))
    layers, last, shared = [], 0, []
    for number, layer in enumerate(spec.layers):
        own = not kinds or kinds[number] == "full"
        last = number if own else last
        mixer = cast("LatentAttentionSpec", layer.mixer)
        index = replace(token_index(fields, mixer.rotary_dim, **values), of_layer=None if own else last)
        layers.append(replace(layer, mixer=replace(mixer, index=index)))
        shared += [] if own else [f"model.layers.{number}.self_attn.indexer."]
    return replace(spec, layers=tuple(layers), stored_names=StoredNames(ignored=tuple(shared)))


def token_index(fields: Fields, rotary_dim: int, **values: Any) -> TokenIndexSpec:
    """Return the choice of tokens of layers that rotate so many dimensions; `values` are further fields of it."""
    return TokenIndexSpec(
        num_heads=fields.integer("index_n_heads", 1, 1 << 12),
        size=fields.integer("index_head_dim", rotary_dim, 1024),
        kept=fields.integer("index_topk", 1, 1 << 30),
        **values,
    )


def index_kinds(fields: Fields, every: int = 1) -> list[str]:
    """Return for each layer whether it has an indexer, `full`, or uses the last one's choice, `shared`.

    Without `indexer_types` or a pattern, the first layers (`index_skip_topk_offset`) have one, and then one of `every`.
    """
    pattern = fields.values.get("index_topk_pattern")
    if isinstance(pattern, str):
        fields = fields.with_defaults(indexer_types=[{"F": "full", "S": "shared"}.get(each, each) for each in pattern])
    every = fields.integer("index_topk_freq", 1, 4096, default=every)
    first = fields.integer("index_skip_topk_offset", 0, 4096, default=2)

    def default(layer: int) -> str:
        return "shared" if max(layer - first + 1, 0) % every else "full"

    kinds = reading.layer_types(fields, {"full", "shared"}, default, "indexer_types")
    if kinds[0] != "full":
        raise fields.wrong("indexer_types", kinds, "is not supported: the first layer has no choice to share")
    return kinds


DEFAULTS = {
    **deepseek.DEFAULTS,
    "n_routed_experts": 256,
    "first_k_dense_replace": 3,
    "index_topk": 2048,
    "index_head_dim": 128,
    "index_n_heads": 64,
}
DEEPSEEK_V32: Family = Family(
    architecture="DeepseekV32ForCausalLM",
    model_type="deepseek_v32",
    read=lambda fields: read(fields, DEEPSEEK_V32.architecture),
    defaults={**DEFAULTS, "max_position_embeddings": 163840, "intermediate_size": 18432},
)
GLM_MOE_DSA: Family = Family(
    architecture="GlmMoeDsaForCausalLM",
    model_type="glm_moe_dsa",
    read=lambda fields: read(fields, GLM_MOE_DSA.architecture, index_kinds(fields), interleaved=True),
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
        "index_n_heads": 32,
    },
)
