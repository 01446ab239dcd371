"""What a model's files say about its tokenizer, in whatever format they say it."""

from __future__ import annotations

from dataclasses import dataclass, field

from tokenizers import Tokenizer as Backend


@dataclass(frozen=True, slots=True)
class TokenizerParts:
    """Everything that `Tokenizer` is made of."""

    backend: Backend
    special_tokens: dict[str, str] = field(default_factory=dict)
    """`bos_token`, `eos_token` and so on as text, for chat templates."""
    bos: int | None = None
    eos: tuple[int, ...] = ()
    chat_template: str | None = None
    """Jinja source."""
