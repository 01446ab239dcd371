"""Tables of two columns, a name and a value, as lines of text."""

from __future__ import annotations

from collections.abc import Iterable

Rows = list[tuple[str, str]]


def table(rows: Iterable[tuple[str, str]], indent: str = "") -> str:
    """Return the rows as aligned lines, each with its newline."""
    rows = list(rows)
    width = max(len(name) for name, _ in rows)
    return "".join(f"{indent}{name:<{width}}  {value}\n" for name, value in rows)
