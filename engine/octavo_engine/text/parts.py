"""The parts of a tokenizer as a model's files describe them, independent of the files' format."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from tokenizers import Tokenizer as Backend


@dataclass(frozen=True, slots=True)
class TokenizerParts:
    """Everything that `Tokenizer` is made of."""

    backend: Backend
    special_tokens: dict[str, str] = field(default_factory=dict)
    """`bos_token`, `eos_token` and so on as text, for chat templates."""
    bos: int | None = None
    chat_template: str | None = None
    """Jinja source."""


@contextlib.contextmanager
def library_errors(what: str) -> Iterator[None]:
    """Turn whatever the tokenizers library raises in the block into a ValueError that begins with `what`.

    It raises bare Exceptions, and its Rust panics are not Exceptions at all.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001  (see above)
        raise ValueError(f"{what}: {' '.join(str(error).split())}") from None
