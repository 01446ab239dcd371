"""Rows of a name and a value as lines. Imports nothing, so that the HTTP process can show what the engine planned."""

from __future__ import annotations

from collections.abc import Iterable

Rows = list[tuple[str, str]]


def table(rows: Iterable[tuple[str, str]], indent: str = "") -> str:
    """The rows as lines, each with its end."""
    rows = list(rows)
    width = max(len(name) for name, _ in rows)
    return "".join(f"{indent}{name:<{width}}  {value}\n" for name, value in rows)
