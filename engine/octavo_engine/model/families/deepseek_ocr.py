"""The language model of DeepSeek OCR 2: DeepSeek V2's experts, and Llama's attention instead of latent attention."""

from __future__ import annotations

from octavo_engine.model.families import mixtures, reading
from octavo_engine.model.families.deepseek_v2 import softmax_experts
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import ModelSpec


def _read(fields: Fields) -> ModelSpec:
    norm, bias = reading.rms_norm(fields), fields.boolean("attention_bias", False)
    moe, dense = softmax_experts(fields)
    types = mixtures.layer_types(fields, first_dense=1)
    mixer = reading.attention(fields, qkv_bias=bias, output_bias=bias)
    layers = mixtures.layers((mixer,) * len(types), lambda layer: dense if types[layer] == "dense" else moe, norm)
    return reading.model(fields, DEEPSEEK_OCR2.architecture, layers, norm=norm)


DEEPSEEK_OCR2 = Family(
    architecture="DeepseekOcr2TextForCausalLM",
    model_type="deepseek_ocr2_text",
    read=_read,
    defaults={
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 2048,
        "intermediate_size": 11008,
        "moe_intermediate_size": 1407,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "routed_scaling_factor": 1.0,
        "topk_method": "greedy",
        "eos_token_id": 2,
    },
    left_out=frozenset({"head_dim"}),
)
