"""The language model of Qwen3-VL's mixtures: Qwen3's, with one tensor for all experts of a layer."""

from __future__ import annotations

from octavo_engine.model.checkpoint.names import TensorNames
from octavo_engine.model.families.family import Family
from octavo_engine.model.families.qwen3_moe import read_qwen3_moe

_EXPERTS = "model.layers.{layer}.mlp.experts"
_NAMES = TensorNames(
    expert_gate=f"{_EXPERTS}.gate_up_proj",
    expert_up=f"{_EXPERTS}.gate_up_proj",
    expert_down=f"{_EXPERTS}.down_proj",
    expert_layout="rows",
)

QWEN3_VL_MOE: Family = Family(
    architecture="Qwen3VLMoeTextForCausalLM",
    model_type="qwen3_vl_moe_text",
    read=lambda fields: read_qwen3_moe(fields, QWEN3_VL_MOE.architecture, _NAMES, renormalize=True),
    defaults={
        "num_key_value_heads": 16,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 500000.0,
        "max_position_embeddings": 128000,
        "intermediate_size": 5632,
        "num_experts": 60,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 1408,
        "decoder_sparse_step": 1,
        "tie_word_embeddings": False,
    },
    without_effect=frozenset({"norm_topk_prob"}),
)
