"""Typed reading of the keys that describe a tokenizer in a GGUF file, with errors that name them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from octavo_engine.model.gguf.file import read_gguf

PREFIX = "tokenizer.ggml."
UNKNOWN, CONTROL, USER_DEFINED, UNUSED = 2, 3, 4, 5
"""Types of tokens."""

Metadata = Mapping[str, Any]
"""A file's keys without `tokenizer.` and `ggml.`, and `architecture`."""


def read_metadata(path: Path) -> Metadata:
    """Return the keys of a file's tokenizer; ModelLoadError if it is no GGUF file."""
    file = read_gguf(path)
    keys = {key: value for key, value in file.metadata.items() if key.startswith("tokenizer.")}
    found = {key.removeprefix("tokenizer.").removeprefix("ggml."): value for key, value in keys.items()}
    return {**found, "architecture": file.architecture}


def strings(metadata: Metadata, name: str) -> list[str]:
    """Return a list of texts with at least one; ValueError if there is none."""
    value = metadata.get(name)
    if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
        raise ValueError(f"its metadata has no {PREFIX}{name}")
    return value


def _of_type(metadata: Metadata, name: str, kind: type, default: Any) -> Any:
    """Return the value of `name`, or `default` if there is none; ValueError if it is not of type `kind`."""
    value = metadata.get(name)
    if value is None:
        return default
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(
            f"its metadata has {name} of type {type(value).__name__}, which should be of type {kind.__name__}"
        )
    return value


def text(metadata: Metadata, name: str, default: str | None) -> str | None:
    """Return a text; ValueError if it is something else."""
    value: str | None = _of_type(metadata, name, str, default)
    return value


def flag(metadata: Metadata, name: str, default: bool) -> bool:
    """Return a truth value; ValueError if it is something else."""
    value: bool = _of_type(metadata, name, bool, default)
    return value


def numbers(metadata: Metadata, name: str, count: int) -> list[float] | None:
    """Return the list `name`, which has one number for each of `count` tokens; None if there is no such list."""
    value: list[Any] | None = _of_type(metadata, name, list, None)
    if value is None:
        return None
    if len(value) != count or not all(type(item) in (int, float) and math.isfinite(item) for item in value):
        raise ValueError(f"its metadata has no number for each of the {count} tokens in {PREFIX}{name}")
    return value


def octets(metadata: Metadata, name: str) -> bytes | None:
    """Return a list of bytes, signed or not; None if there is none, ValueError if it is something else."""
    value: list[Any] | None = _of_type(metadata, name, list, None)
    if value is None:
        return None
    if not all(type(item) is int and -128 <= item < 256 for item in value):
        raise ValueError(f"its metadata has something else than bytes in {PREFIX}{name}")
    return bytes(item & 255 for item in value)


def token_id(metadata: Metadata, name: str, tokens: Sequence[str], default: int | None = None) -> int | None:
    """Return the id of the token with a role, such as `bos`; None if the vocabulary has no such token."""
    value = _of_type(metadata, f"{name}_token_id", int, default)
    return value if value is not None and 0 <= value < len(tokens) else None


def merges(metadata: Metadata) -> list[tuple[str, str]]:
    """Return the pairs of tokens that are merged, first ones first; a token may begin with a space."""
    found = []
    for merge in strings(metadata, "merges"):
        middle = merge.find(" ", 1)
        found.append((merge[:middle], merge[middle + 1 :]) if middle > 0 else (merge, ""))
    return found


def by_id(tokens: Sequence[str]) -> dict[str, int]:
    """Return the ids by tokens."""
    return {token: number for number, token in enumerate(tokens)}


def of_kinds(metadata: Metadata, tokens: Sequence[str], *kinds: int) -> Iterator[str]:
    """Yield the tokens of these types; none if the file has no types."""
    types = numbers(metadata, "token_type", len(tokens))
    return (token for token, kind in zip(tokens, types or (), strict=types is not None) if kind in kinds)
