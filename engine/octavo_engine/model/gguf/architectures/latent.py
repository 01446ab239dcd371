"""GGUF files of models with latent attention (MLA).

Old files have the projection from latents to keys and values as one tensor, and a head's sizes in the keys of plain
attention. New ones have two tensors, in those keys the sizes of what is cached, and a head's sizes in other keys.
"""

from __future__ import annotations

from typing import Any

from octavo_engine.errors import ModelLoadError
from octavo_engine.model.gguf.architecture import GGUFArchitecture
from octavo_engine.model.gguf.config_fields import router_fields
from octavo_engine.model.gguf.header import Header
from octavo_engine.model.gguf.rope import rope_parameters
from octavo_engine.model.gguf.spec_changes import numbered_experts

_GROUPS = {(60, 160): (8, 3), (61, 256): (8, 4), (27, 64): (1, 1), (61, 384): (1, 1)}
"""The groups of experts, and those kept, by layers and experts, in files of before October 2025, which do not state
them: of DeepSeek V2, V3, V2 Lite (and Moonlight), and Kimi K2."""
_GLM_52_CONTEXT = 1 << 20
"""The longest context of GLM-5.2, whose layers share indexers."""
_GLM_LAYERS, _GLM_VOCABULARY = (47, 48), 154880
"""GLM-4.7-Flash's sizes: its first files do not state that scores are sigmoids."""


def latent_fields(header: Header) -> dict[str, Any]:
    """Return the sizes of latent attention, and RoPE with its factor of scores."""
    own = "_mla" if header.has("attention.key_length_mla") else ""
    even = header.integer("embedding_length") // header.integer("attention.head_count")
    key = header.integer(f"attention.key_length{own}", 2, 4096)
    value = header.integer(f"attention.value_length{own}", 1, 4096, default=even)
    rotary = header.integer("rope.dimension_count", 1, key - 1)
    rope, log_multiplier = rope_parameters(header), "rope.scaling.yarn_log_multiplier"
    if rope.get("rope_type") == "yarn" and header.has(log_multiplier):
        scale = round(10 * header.number(log_multiplier), 6)  # the converter stores a tenth of it, in float32
        rope |= {"mscale": scale, "mscale_all_dim": scale}
    return {
        "q_lora_rank": header.integer("attention.q_lora_rank") if header.stored("attn_q_a.weight") else None,
        "kv_lora_rank": header.integer("attention.kv_lora_rank"),
        "qk_nope_head_dim": key - rotary,
        "qk_rope_head_dim": rotary,
        "v_head_dim": value,
        "head_dim": None,
        "partial_rotary_factor": 1.0,
        "rope_parameters": rope,
    }


def _deepseek2_fields(header: Header) -> dict[str, Any]:
    """Return the fields of DeepSeek V2, whose router has softmax scores, or of V3 and its successors."""
    layers, vocabulary = header.integer("block_count"), header.file.tensors["token_embd.weight"].shape[0]
    scores: tuple[str, ...] = ("softmax", "sigmoid")
    if layers in _GLM_LAYERS and vocabulary == _GLM_VOCABULARY:
        scores = ("sigmoid",)
    fields = {**latent_fields(header), **router_fields(header, *scores)}
    if not header.has("expert_group_count"):
        sizes = layers, fields["n_routed_experts"]
        if sizes not in _GROUPS:
            raise ModelLoadError(
                f"{header.fields.origin}: {header.key('expert_group_count')} is missing, and no published model with "
                f"{sizes[0]} layers and {sizes[1]} experts shows it; convert the model again with a current llama.cpp"
            )
        fields |= dict(zip(("n_group", "topk_group"), _GROUPS[sizes], strict=True))
    if fields["scoring_func"] == "sigmoid":
        return fields
    if fields["norm_topk_prob"]:
        raise header.fields.wrong(header.key("expert_weights_norm"), True, "is not supported with softmax scores")
    method = "greedy" if fields["n_group"] == 1 else "group_limited_greedy"
    return {**fields, "architectures": ["DeepseekV2ForCausalLM"], "topk_method": method}


def _mistral4_fields(header: Header) -> dict[str, Any]:
    """Return Mistral Small 4's fields, whose queries grow with their position."""
    fields = {**latent_fields(header), **router_fields(header, "softmax")}
    rope, length = fields["rope_parameters"], "attention.temperature_length"
    if header.has(length) and header.integer(length, 1, 1 << 30) != rope.get("original_max_position_embeddings"):
        why = f"is not {header.key('rope.scaling.original_context_length')}"
        raise header.fields.wrong(header.key(length), header.integer(length, 1, 1 << 30), why)
    growth = header.number("attention.temperature_scale", default=0.0)
    return {**fields, "rope_parameters": {**rope, "llama_4_scaling_beta": growth}}


def _glm_dsa_fields(header: Header) -> dict[str, Any]:
    """Return GLM-5's fields."""
    names = {"index_n_heads": "head_count", "index_head_dim": "key_length", "index_topk": "top_k"}
    return {
        **latent_fields(header),
        **router_fields(header, "sigmoid"),
        **{ours: header.integer(f"attention.indexer.{theirs}") for ours, theirs in names.items()},
        "indexer_types": _indexer_types(header),
    }


def _indexer_types(header: Header) -> list[str]:
    """Return which layers have an indexer. Files of GLM-5 and 5.1, where all have one, do not say so."""
    flags: object = header.fields.values.get(key := header.key("attention.indexer.types"))
    if flags is None and header.integer("context_length", 1, 1 << 30) < _GLM_52_CONTEXT:
        flags = [True] * header.num_layers
    if not isinstance(flags, list) or len(flags) < header.num_layers:
        why = f"is not a flag for each of {header.num_layers} layers; convert the model again with a current llama.cpp"
        raise header.fields.wrong(key, flags, why)
    return ["full" if flag else "shared" for flag in flags[: header.num_layers]]


LATENT = (
    GGUFArchitecture(
        name="mistral4",
        model_class="Mistral4ForCausalLM",
        experts=True,
        read=_mistral4_fields,
        change=numbered_experts,
    ),
    GGUFArchitecture(name="glm-dsa", model_class="GlmMoeDsaForCausalLM", experts=True, read=_glm_dsa_fields),
    GGUFArchitecture(
        name="deepseek2",
        model_class="DeepseekV3ForCausalLM",
        other_classes=("DeepseekV2ForCausalLM", "Glm4MoeLiteForCausalLM"),
        experts=True,
        read=_deepseek2_fields,
    ),
    GGUFArchitecture(name="deepseek2", model_class="YoutuForCausalLM", read=latent_fields),
    GGUFArchitecture(name="minicpm3", model_class="MiniCPM3ForCausalLM", read=latent_fields),
)
