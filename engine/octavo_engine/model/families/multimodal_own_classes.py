"""Model classes that also take images or sound and stand in the repositories of their models, not in transformers."""

from __future__ import annotations

from collections.abc import Mapping

OWN_CLASSES: Mapping[str, str] = {
    "BeeForConditionalGeneration": "Qwen3ForCausalLM",
    "DeepseekOCR2ForCausalLM": "DeepseekV2ForCausalLM",
    "DeepseekOCRForCausalLM": "DeepseekV2ForCausalLM",
    "DeepseekVLV2ForCausalLM": "DeepseekV2ForCausalLM",
    "DotsOCRForCausalLM": "Qwen2ForCausalLM",
    "H2OVLChatModel": "",
    "InternS1ForConditionalGeneration": "",
    "InternVLChatModel": "",
    "KeyeForConditionalGeneration": "Qwen3ForCausalLM",
    "KeyeVL1_5ForConditionalGeneration": "Qwen3ForCausalLM",
    "KimiVLForConditionalGeneration": "DeepseekV3ForCausalLM",
    "LightOnOCRForConditionalGeneration": "",
    "Llama_Nemotron_Nano_VL": "",
    "MiniCPMO": "",
    "MiniCPMV": "",
    "NVLM_D": "",
    "NemotronH_Nano_Omni_Reasoning_V3": "NemotronHForCausalLM",
    "NemotronH_Nano_VL_V2": "NemotronHForCausalLM",
    "NemotronH_Omni_Reasoning_V3": "NemotronHForCausalLM",
    "OpenCUAForConditionalGeneration": "Qwen2ForCausalLM",
    "Ovis": "",
    "Ovis2_5": "Qwen3ForCausalLM",
    "Phi3VForCausalLM": "Phi3ForCausalLM",
    "RForConditionalGeneration": "",
    "SkyworkR1VChatModel": "",
}
"""The architecture of the language model inside each; empty: the one in BY_MODEL_TYPE."""

SHORT_NAMES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "DeepseekVLV2ForCausalLM": ("language.", ("vision.",)),
    "MiniCPMO": ("llm.", ("tts.",)),
    "MiniCPMV": ("llm.", ()),
    "Ovis": ("llm.", ("vte.",)),
    "Ovis2_5": ("llm.", ("vte.",)),
}
"""What the language model's names begin with in the files of some of these classes, and those of modules that are not
read: names that may mean something else in the files of others."""


def deepseek_class(fields: Mapping[str, object]) -> str:
    """Return the class of a language model of DeepSeek, whose files name DeepSeek V2's for each of three."""
    if fields.get("use_mla") is False:
        return "DeepseekOcr2TextForCausalLM"
    return "DeepseekV3ForCausalLM" if fields.get("topk_method") == "noaux_tc" else "DeepseekV2ForCausalLM"
