"""Small random decoders without a head for text, and what they return for prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from checkpoints import SIZES, save_words

from octavo_engine import LLM, SamplingParams

POOL = SamplingParams(max_tokens=0)

NO_IDS: dict[str, Any] = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))


def saved(name: str, directory: Path, **changes: Any) -> Any:
    """A small random model of a class of transformers, in `directory` with a tokenizer."""
    torch.manual_seed(7)
    kind = getattr(transformers, name)
    model = kind(kind.config_class(**{**SIZES, **NO_IDS, **changes})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.2)
    model.save_pretrained(directory)
    save_words(directory, SIZES["vocab_size"])
    return model


def pooled(llm: LLM, prompts: list[list[int]]) -> torch.Tensor:
    """Return the model's pooled output for each prompt, unchanged."""
    found = llm.generate(prompts, POOL, pooled=True)
    assert not any(each.error for each in found)
    return torch.stack([torch.frombuffer(bytearray(each.pooled), dtype=torch.float32) for each in found])


def close_to(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Within 1e-4 of numbers of size 1."""
    return bool(((found - expected).abs() / expected.abs().clamp(min=1)).max() < 1e-4)
