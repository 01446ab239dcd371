"""Sarvam 30B, which is Ling 2 with RoPE of whole heads, and Sarvam 105B, which is DeepSeek V3, of Sarvam AI."""

from __future__ import annotations

from dataclasses import replace

from octavo_engine.model.families.bailing_moe import BAILING_MOE_V2
from octavo_engine.model.families.deepseek import DEEPSEEK_V3
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import ModelSpec


def _read_mla(fields: Fields) -> ModelSpec:
    if (scores := fields.text("score_function", default="sigmoid")) != "sigmoid":
        raise fields.wrong("score_function", scores, "is not supported, only sigmoid")
    for name in ("rope_scaling", "rope_parameters"):
        scaling = fields.mapping(name)
        if scaling is not None and "deepseek_yarn" in (scaling.values.get("type"), scaling.values.get("rope_type")):
            values = {**scaling.values, "type": None, "rope_type": "yarn"}
            fields = replace(fields, values={**fields.values, name: values})
    return replace(DEEPSEEK_V3.read(fields), architecture=SARVAM_MLA.architecture)


_DEFAULTS = {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "routed_scaling_factor": 2.5, "eos_token_id": 1}
SARVAM_MOE: Family = replace(
    BAILING_MOE_V2,
    architecture="SarvamMoEForCausalLM",
    model_type="sarvam_moe",
    read=lambda fields: replace(BAILING_MOE_V2.read(fields), architecture=SARVAM_MOE.architecture),
    aliases={
        "n_routed_experts": "num_experts",
        "n_shared_experts": "num_shared_experts",
        "attention_bias": "use_qkv_bias",
    },
    defaults={
        **BAILING_MOE_V2.defaults,
        **_DEFAULTS,
        "rope_theta": 8e6,
        "max_position_embeddings": 131072,
        "num_experts": 128,
        "num_experts_per_tok": 6,
        "partial_rotary_factor": 1.0,
    },
)
SARVAM_MLA: Family = replace(
    DEEPSEEK_V3,
    architecture="SarvamMLAForCausalLM",
    model_type="sarvam_mla",
    read=_read_mla,
    aliases={"num_experts": "n_routed_experts", "num_shared_experts": "n_shared_experts"},
    defaults={
        **{name: value for name, value in DEEPSEEK_V3.defaults.items() if name != "q_lora_rank"},
        **_DEFAULTS,
        "intermediate_size": 16384,
        "n_routed_experts": 128,
    },
)
