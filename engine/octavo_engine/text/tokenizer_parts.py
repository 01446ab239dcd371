"""The parts of a tokenizer as a model's files describe them, independent of the files' format."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from tokenizers import Tokenizer as Backend


@dataclass(frozen=True, slots=True)
class TokenizerParts:
    """The parts from which `Tokenizer` is made."""

    backend: Backend
    special_tokens: dict[str, str] = field(default_factory=dict)
    """`bos_token`, `eos_token` and so on as text, for chat templates."""
    bos: int | None = None
    """The id of the token that begins a text; None if the model has none."""
    chat_template: str | None = None
    """The Jinja source of the chat template; None if the model has none."""


@contextlib.contextmanager
def library_errors(what: str) -> Iterator[None]:
    """Turn whatever the tokenizers library raises in the block into a ValueError that begins with `what`.

    It raises bare Exceptions, and its Rust panics are not Exceptions at all.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001  (a panic is not an Exception)
        raise ValueError(f"{what}: {' '.join(str(error).split())}") from None
