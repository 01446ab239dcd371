"""A configuration of a family, and sizes that many cases share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from checkpoints import UNEVEN as UNEVEN_BIASED

WINDOW = 8
HEADS_OF_16 = {"hidden_size": 128}
"""With 8 heads."""
UNEVEN = {name: value for name, value in UNEVEN_BIASED.items() if name != "attention_bias"}
"""For families whose config.json does not say which linears have biases."""


LLAMA_SIZES = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8}


@dataclass(frozen=True)
class Case:
    """One configuration of a family, and how it is asked."""

    family: str
    """As transformers names its classes, without `Config` and `ForCausalLM`."""
    changes: dict[str, Any] = field(default_factory=dict)
    context: int = 160
    """`--max-model-len`."""
    lengths: tuple[int, ...] = (1, 17, 90, 33, 60, 24)
    """Tokens of the prompts; the first is asked alone as well."""
    std: float = 0.25
    """Of random matrices (checkpoints.py)."""
