"""Kubernetes quantities (`500m`, `16Gi`, `4`): accepted and compared as by `isQuantity` and `quantity()` in CEL."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated, Any

from pydantic import Field, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from octavo_operator.api.schema import Rule

_SYNTAX = re.compile(r"\+?(\d+(?:\.\d*)?|\.\d+)(?:([KMGTPE]i|[numkMGTPE])|[eE]([+-]?\d+))?", re.ASCII)
_FACTORS = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "k": Decimal("1e3"), "M": Decimal("1e6"),
    "G": Decimal("1e9"), "T": Decimal("1e12"), "P": Decimal("1e15"), "E": Decimal("1e18"),
    **{f"{letter}i": Decimal(1024) ** n for n, letter in enumerate("KMGTPE", 1)},
}  # fmt: skip
_MOST = Decimal(2**63 - 1)
"""The largest quantity: Kubernetes takes larger ones for this (apimachinery's ParseQuantity)."""
_MOST_EXPONENT = 64
"""Quantities with larger exponents exceed `_MOST`, and may exceed what a Decimal can be."""


def parse_quantity(value: str | int) -> Decimal:
    """Return the number that a quantity stands for (bytes, cores); ValueError if it is none or negative."""
    match = _SYNTAX.fullmatch(str(value))
    if match is None:
        raise ValueError(f"{value!r} is not a quantity")
    number, suffix, exponent = match.groups()
    factor = _FACTORS[suffix] if suffix else Decimal(10) ** min(int(exponent or 0), _MOST_EXPONENT)
    return min(Decimal(number) * factor, _MOST)


def _is_quantity(value: Any) -> bool:
    try:
        parse_quantity(value)
    except (ValueError, ArithmeticError):
        return False
    return True


_SENTENCE = "must be a Kubernetes quantity that is not negative, such as 500m, 4 or 16Gi"


def _string_or_int(value: Any) -> str | int:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise PydanticCustomError("rule", "{sentence}", {"sentence": _SENTENCE})
    return value


Quantity = Annotated[
    str | int,
    PlainValidator(_string_or_int),  # a union would put the names of its members into the path of a problem
    WithJsonSchema(
        {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}], "maxLength": 32}
    ),
    Rule(
        "type(self) == int ? self >= 0 : (isQuantity(self) && !quantity(self).isLessThan(quantity('0')))",
        _SENTENCE,
        _is_quantity,
    ),
]
"""A quantity written as a string or as a whole number, as in a pod's resources."""

Size = Annotated[
    str,
    Field(min_length=1, max_length=32),
    Rule(
        "isQuantity(self) && quantity(self).isGreaterThan(quantity('0'))",
        "must be a Kubernetes quantity above zero, such as 16Gi",
        lambda text: _is_quantity(text) and parse_quantity(text) > 0,
    ),
]
"""A size of storage or memory."""
