"""Typed and bounded access to a mapping from a file; errors name the file and the field."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from octavo_engine.errors import ModelLoadError

_REQUIRED: Any = object()
_NULL_IS_FALSE = ("mamba_conv_bias", "mamba_norm_before_gate", "moe_renormalize", "norm_topk_prob", "rope_interleave")
"""Fields in which transformers takes null as false: null is refused in families whose default is true."""


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of one JSON object or one GGUF header. Absent and null are the same."""

    origin: str
    """The origin of the mapping, for messages."""
    values: Mapping[str, Any]
    prefix: str = ""
    """A prefix of field names in messages, such as `rope_scaling.`."""
    read: set[str] = field(default_factory=set, compare=False, repr=False)
    """The names of the fields that were read."""
    nulls: frozenset[str] = frozenset()
    """The names of fields that are null in the file, and have no other value."""

    def integer(self, name: str, low: int, high: int, default: Any = _REQUIRED) -> int:
        """Return a whole number in [low, high]; ModelLoadError otherwise."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(name, value, "is not a whole number")
        if not low <= value <= high:
            raise self.wrong(name, value, f"is not between {low} and {high}")
        return value

    def number(self, name: str, low: float, high: float, default: Any = _REQUIRED) -> float:
        """Return a finite number in [low, high]; ModelLoadError otherwise."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(name, value, "is not a number")
        if isinstance(value, float) and not math.isfinite(
            value
        ):  # isfinite() raises for integers too large for a float
            raise self.wrong(name, value, "is not a number")
        if not low <= value <= high:
            raise self.wrong(name, value, f"is not between {low:g} and {high:g}")
        return float(value)

    def boolean(self, name: str, default: bool) -> bool:
        """Return the field, true or false; ModelLoadError for any other value."""
        value = self._get(name, default)
        if not isinstance(value, bool) or (value and name in self.nulls and name in _NULL_IS_FALSE):
            raise self.wrong(name, None if isinstance(value, bool) else value, "is neither true nor false")
        return value

    def text(self, name: str, default: Any = _REQUIRED) -> str:
        """Return a string; ModelLoadError otherwise."""
        value = self._get(name, default)
        if not isinstance(value, str):
            raise self.wrong(name, value, "is not a string")
        return value

    def mapping(self, name: str) -> Fields | None:
        """Return the object under `name`, None if there is none; ModelLoadError if it is something else."""
        value = self._get(name, None)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.wrong(name, value, "is not an object")
        return Fields(self.origin, value, f"{self.prefix}{name}.")

    def integers(self, name: str) -> tuple[int, ...]:
        """Return a whole number, or a list of them, as a tuple; empty if absent; ModelLoadError otherwise."""
        value = self._get(name, None)
        items = value if isinstance(value, list) else [] if value is None else [value]
        if any(isinstance(item, bool) or not isinstance(item, int) for item in items):
            raise self.wrong(name, value, "is neither a whole number nor a list of them")
        return tuple(items)

    def has(self, name: str) -> bool:
        """Return True if the field is there and not null."""
        self.read.add(name)
        return self.values.get(name) is not None

    def wrong(self, name: str, value: Any, why: str) -> ModelLoadError:
        """Return the error to raise about a field."""
        shown = repr(value)
        shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
        return ModelLoadError(f"{self.origin}: {self.prefix}{name} {shown} {why}")

    def with_defaults(self, **values: Any) -> Fields:
        """Return the same mapping with these values for the fields that it omits."""
        present = {name: value for name, value in self.values.items() if value is not None}
        return replace(self, values={**values, **present})

    def without(self, *names: str) -> Fields:
        """Return the same mapping without some fields."""
        return replace(self, values={name: value for name, value in self.values.items() if name not in names})

    def _get(self, name: str, default: Any) -> Any:
        self.read.add(name)
        value = self.values.get(name)
        if value is not None:
            return value
        if default is _REQUIRED:
            raise ModelLoadError(f"{self.origin}: {self.prefix}{name} is missing")
        return default
