"""How the language model inside a model that also takes images or sound is found, and how its logits are computed."""

from __future__ import annotations

from collections.abc import Mapping

from octavo_engine.model.families.wrappers import WRAPPERS

BY_MODEL_TYPE: Mapping[str, str] = {
    "cohere2": "Cohere2ForCausalLM",
    "exaone4": "Exaone4ForCausalLM",
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "granite": "GraniteForCausalLM",
    "lfm2": "Lfm2ForCausalLM",
    "llama": "LlamaForCausalLM",
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
PLAIN_HEADS = frozenset(WRAPPERS) - {
    "CohereCompassForConditionalGeneration",
    "Gemma3nForConditionalGeneration",
    "Gemma4ForConditionalGeneration",
    "Gemma4UnifiedForConditionalGeneration",
    "Granite4VisionForConditionalGeneration",
    "GraniteDoclingForConditionalGeneration",
    "HyperCLOVAXVisionV2ForConditionalGeneration",
    "NemotronH_Omni_Reasoning_V3",
    "MistralLarge4ForConditionalGeneration",
}
"""Architectures that compute logits without the scales and softcaps of their language model."""
NEVER_TIED = frozenset({"Qwen2AudioForConditionalGeneration", "VoxtralForConditionalGeneration"})
"""Architectures whose head has its own weight, even where `tie_word_embeddings` is true."""
OTHER_MODULES = (
    "vision_tower",
    "vision_model",
    "visual",
    "multi_modal_projector",
    "connector",
    "embed_vision",
    "image_tower",
    "video_tower",
    "aligner",
    "vision_encoder",
    "vision_projection",
    "vision_projector",
    "acoustic_tokenizer_encoder",
    "semantic_tokenizer_encoder",
    "acoustic_projection",
    "semantic_projection",
    "thinker",
    "talker",
    "token2wav",
    "code2wav",
    "visual_embeddings_table",
    "audio_tower",
    "audio_encoder",
    "embed_audio",
    "projector",
    "vision_embed_tokens",
    "vqmodel",
    "generation_embeddings",
    "generation_aligner",
    "generation_head",
    "mm_projector",
    "mlp1",
    "mlp_AR",
    "merger",
    "vit",
    "encoder",
    "high_res_vision_model",
    "high_res_vision_neck",
    "high_res_vision_proj",
    "patch_merge_mlp",
    "layerwise_projectors",
    "spatial_projectors",
    "vit_large_projector",
    "qformer",
    "language_projection",
    "sam_model",
    "qwen2_model",
)
"""Modules beside the language model, whose tensors are not read."""
