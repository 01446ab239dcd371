"""The language models inside models that also take images or sound: their classes, and how their heads differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo_engine.model.families.multimodal_classes import WRAPPERS
from octavo_engine.model.families.multimodal_own_classes import OWN_CLASSES

BY_MODEL_TYPE: Mapping[str, str] = {
    "cohere2": "Cohere2ForCausalLM",
    "exaone4": "Exaone4ForCausalLM",
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "granite": "GraniteForCausalLM",
    "internlm2": "InternLM2ForCausalLM",
    "lfm2": "Lfm2ForCausalLM",
    "llama": "LlamaForCausalLM",
    "minicpmo 2.6": "Qwen2ForCausalLM",
    "minicpmo 4.5": "Qwen3ForCausalLM",
    "minicpmv 2.0": "MiniCPMForCausalLM",
    "minicpmv 2.5": "LlamaForCausalLM",
    "minicpmv 2.6": "Qwen2ForCausalLM",
    "minicpmv 4.0": "LlamaForCausalLM",
    "minicpmv 4.5": "Qwen3ForCausalLM",
    "ministral3": "Ministral3ForCausalLM",
    "mistral": "MistralForCausalLM",
    "mistral4": "Mistral4ForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "opt": "OPTForCausalLM",
    "phi": "PhiForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
}
"""The architecture of a language model by its `model_type`, followed by `version` where config.json states one."""
PLAIN_HEADS = frozenset(WRAPPERS).difference(
    OWN_CLASSES,
    {
        "CohereCompassForConditionalGeneration",
        "Gemma3nForConditionalGeneration",
        "Gemma4ForConditionalGeneration",
        "Gemma4UnifiedForConditionalGeneration",
        "Granite4VisionForConditionalGeneration",
        "GraniteDoclingForConditionalGeneration",
        "HyperCLOVAXVisionV2ForConditionalGeneration",
        "MuseGlimmerForConditionalGeneration",
        "MistralLarge4ForConditionalGeneration",
    },
)
"""Architectures that compute logits without the scales and softcaps of their language model."""
NEVER_TIED = frozenset({"Qwen2AudioForConditionalGeneration", "VoxtralForConditionalGeneration"})
"""Architectures whose head has its own weight, even where `tie_word_embeddings` is true."""
TIED_BY_DEFAULT = frozenset(
    f"{name}ForConditionalGeneration"
    for name in (
        *("AyaVision", "Cohere2Vision", "DeepseekVL", "DeepseekVLHybrid", "Ernie4_5_VLMoe", "FunAsrNano", "Gemma3"),
        *("Gemma3n", "Gemma4", "Gemma4Unified", "GlmAsr", "GotOcr2", "GraniteDocling", "GraniteSpeech"),
        *("GraniteSpeechPlus", "HunYuanVL", "HyperCLOVAXVisionV2", "InternVL", "Janus", "KimiK25", "Kimi_K25"),
        *("Lfm2Vl", "Lfm3Vl", "LightOnOcr", "MiniCPMOcr", "Mistral3", "MossTranscribeDiarize", "Ovis2"),
        *("PaddleOCRVL", "Qwen3ASR"),
    )
)
"""Architectures whose head is the embedding where neither config.json says anything about it nor the files have a head.
"""
_QWEN2_VL = {"num_key_value_heads": 8, "max_window_layers": 80, "rms_norm_eps": 1e-5, "rope_theta": 1e6}
_QWEN2_5_OMNI = {"num_key_value_heads": 4, "sliding_window": 32768, "rope_theta": 1e6}
_QWEN3_OMNI = {"num_key_value_heads": 4, "norm_topk_prob": True, "rope_theta": 1e6}
_GLM4V = {"max_position_embeddings": 32768, "rms_norm_eps": 1e-5}
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "Glm46VForConditionalGeneration": _GLM4V,
    "Glm4vForConditionalGeneration": _GLM4V,
    "Glm4vMoeForConditionalGeneration": {"attention_bias": True, "max_position_embeddings": 65536},
    "GraniteDoclingForConditionalGeneration": {
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-5,
        "attention_multiplier": 0.015625,
        "embedding_multiplier": 12.0,
        "logits_scaling": 4.0,
        "residual_multiplier": 0.263,
    },
    "Qwen2VLForConditionalGeneration": _QWEN2_VL,
    "Qwen2_5_VLForConditionalGeneration": _QWEN2_VL,
    "Qwen2_5OmniForConditionalGeneration": _QWEN2_5_OMNI,
    "Qwen2_5OmniModel": _QWEN2_5_OMNI,
    "Qwen2_5OmniThinkerForConditionalGeneration": _QWEN2_5_OMNI,
    "Qwen3OmniMoeForConditionalGeneration": _QWEN3_OMNI,
    "Qwen3OmniMoeThinkerForConditionalGeneration": _QWEN3_OMNI,
    "Qwen3VLForConditionalGeneration": {"max_position_embeddings": 128000, "rope_theta": 500000.0},
    "VoxtralForConditionalGeneration": {
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e8,
    },
}
"""What fields of the language model are where config.json omits them, if not what its own family says."""
