"""InternLM 1 of Shanghai AI Laboratory: Llama with biases in attention."""

from __future__ import annotations

from dataclasses import replace

from octavo_engine.model.families.family import Family
from octavo_engine.model.families.llama import LLAMA
from octavo_engine.model.fields import Fields
from octavo_engine.model.spec import ModelSpec


def _read(fields: Fields) -> ModelSpec:
    """Return Llama's spec; files name RoPE's base in `rotary`, whose scaling begins beyond the longest context."""
    rotary = fields.mapping("rotary")
    if rotary is not None:
        kind = rotary.text("type")
        if kind not in ("origin", "dynamic"):
            raise rotary.wrong("type", kind, "is not supported, only origin and dynamic")
        fields = replace(fields, values={**fields.values, "rope_theta": rotary.number("base", 1e-3, 1e12)})
    return replace(LLAMA.read(fields), architecture=INTERNLM.architecture)


INTERNLM = Family(
    architecture="InternLMForCausalLM",
    model_type="internlm",
    read=_read,
    aliases={"bias": "attention_bias"},
    defaults={**LLAMA.defaults, "attention_bias": True, "max_position_embeddings": 2048},
)
