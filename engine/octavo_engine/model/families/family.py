"""What differs from one family of decoders to the next; everything else is the same code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Family:
    """A Hugging Face model class this engine computes."""

    architecture: str
    """The class's name in config.json."""
    model_type: str
    gguf_architecture: str
    """`general.architecture` of its GGUF files; empty: they are not read."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Fields that config.json may leave out, with the values the family's own configuration class gives them."""
    qk_norm: bool = False
    """Whether each head of query and key is normalised before it is turned."""
    experts: bool = False
    """Whether feed-forwards are mixtures of experts, with biases and gpt-oss's activation."""
    attention_sinks: bool = False
    sliding_layers: bool = False
    """Whether some layers' attention sees no more than a window: those that `layer_types` names, else every second."""
    gguf_interleaves_rope: bool = False
    """Whether GGUF files hold the rows of q and k so that rotated pairs lie side by side (llama.cpp's order)."""
