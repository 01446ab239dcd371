"""Models that are Llama, or Llama with biases, under another class, which stands in their own repositories.

Aquila of BAAI, IQuest Coder, openPangu Embedded of Huawei (arXiv 2505.22375), and XVERSE 7B, 13B and 65B.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from octavo_engine.model.families.family import Family
from octavo_engine.model.families.llama import LLAMA
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import ModelSpec


def _family(architecture: str, model_type: str, aliases: Mapping[str, str] | None = None, **defaults: Any) -> Family:
    def read(fields: Fields) -> ModelSpec:
        return replace(LLAMA.read(fields), architecture=architecture)

    return Family(
        architecture=architecture,
        model_type=model_type,
        read=read,
        aliases=aliases or {},
        defaults={**LLAMA.defaults, **defaults},
    )


LLAMA_SHAPES = (
    _family("AquilaForCausalLM", "aquila"),
    _family("AquilaModel", "aquila"),  # Aquila 1 with its head, in spite of the name
    _family("LLaMAForCausalLM", "llama"),  # conversions of Llama 1 made before transformers had its class
    _family("IQuestCoderForCausalLM", "iquestcoder"),
    _family("PanguEmbeddedForCausalLM", "PanguEmbedded", {"bias": "attention_bias"}, attention_bias=True),
    _family("XverseForCausalLM", "xverse", max_position_embeddings=8192, eos_token_id=3),
)
