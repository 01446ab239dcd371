"""gpt-oss of OpenAI (arXiv 2508.10925): Llama with experts in MXFP4, attention sinks and sliding windows.

Every second layer has a window. Linears have biases, the router and the experts too, and the experts' gate and up are
cut off at `swiglu_limit`.
"""

from __future__ import annotations

from octavo_engine.model.checkpoint.names import TensorNames
from octavo_engine.model.families import reading
from octavo_engine.model.families.family import Family
from octavo_engine.model.fields import Fields
from octavo_engine.model.quantization.mxfp4 import read_mxfp4
from octavo_engine.model.spec import LayerSpec, ModelSpec, MoESpec, RouterSpec

_EXPERTS = "model.layers.{layer}.mlp.experts"
_NAMES = TensorNames(
    router="model.layers.{layer}.mlp.router",
    expert_gate=f"{_EXPERTS}.gate_up_proj",
    expert_up=f"{_EXPERTS}.gate_up_proj",
    expert_down=f"{_EXPERTS}.down_proj",
    expert_layout="interleaved columns",
)


def _read(fields: Fields) -> ModelSpec:
    norm, bias = reading.rms_norm(fields), fields.boolean("attention_bias", False)
    experts = reading.num_experts(fields, "num_local_experts")
    moe = MoESpec(
        num_experts=experts,
        top_k=fields.integer("num_experts_per_tok", 1, experts),
        intermediate_size=reading.intermediate_size(fields),
        router=RouterSpec(bias=True),
        bias=True,
        limit=fields.number("swiglu_limit", 1e-3, 1e6),
        alpha=fields.number("swiglu_alpha", 0, 1e3),
        quantization=read_mxfp4(fields),
    )
    layers = tuple(
        LayerSpec(
            mixer=reading.attention(fields, qkv_bias=bias, output_bias=bias, sinks=True, window=window),
            feed_forward=moe,
            norms=reading.norms_before(norm),
        )
        for window in reading.windows(fields, default=lambda layer: layer % 2 == 0)
    )
    return reading.model(fields, GPT_OSS.architecture, layers, norm=norm, names=_NAMES, quantization=None)


GPT_OSS = Family(
    architecture="GptOssForCausalLM",
    model_type="gpt_oss",
    read=_read,
    defaults={
        "head_dim": 64,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 150000.0,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
        "attention_bias": True,
        "tie_word_embeddings": False,
        "sliding_window": 128,
        "num_local_experts": 128,
        "num_experts_per_tok": 4,
        "swiglu_alpha": 1.702,
        "swiglu_limit": 7.0,
    },
)
