"""What a loaded engine is: told once, when it is ready."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """What whoever asks the engine needs to know about it."""

    max_model_len: int
    """Tokens of the longest sequence, prompt and answer together."""
    vocab_size: int
    """Width of the logits: no token id may reach it."""
    eos_token_ids: tuple[int, ...]
    block_size: int
    num_kv_blocks: int
    max_num_seqs: int
    dtype: str
    device: str
    attention_backend: str
    load_seconds: float
