"""Reads single values of objects that the operator has not checked: a stored status, a patched pod, a stored spec."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

Value = TypeVar("Value")


def value_at(found: Mapping[str, Any] | None, kind: type[Value], *path: str) -> Value | None:
    """Return the value at `path`; None if there is none or it is of another kind, as another version may write it."""
    inner: Any = found
    for name in path:
        inner = inner.get(name) if isinstance(inner, Mapping) else None
    return inner if isinstance(inner, kind) and not isinstance(inner, bool) else None
