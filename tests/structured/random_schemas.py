"""Random JSON schemas of the kinds that applications write; the same seed gives the same schemas."""

from __future__ import annotations

import random
from typing import Any

_FORMATS = ("date", "date-time", "time", "duration", "uuid", "ipv4", "ipv6", "email", "hostname")
_WORDS = ("name", "größe", "id", "a b", 'qu"ote', "tags", "x")


def random_schema(seed: int) -> dict[str, Any]:
    """An object whose properties are of any kind."""
    return _object(random.Random(seed), depth=2)


def _object(draws: random.Random, depth: int) -> dict[str, Any]:
    names = draws.sample(_WORDS, draws.randint(1, 3))
    return {
        "type": "object",
        "properties": {name: _any(draws, depth - 1) for name in names},
        "required": draws.sample(names, draws.randint(0, len(names))),
        "additionalProperties": False,
    }


def _any(draws: random.Random, depth: int) -> dict[str, Any]:
    kinds = [_string, _number, _choice, _simple]
    if depth > 0:
        kinds += [_object_within(depth), _array_within(depth), _either_within(depth)]
    return draws.choice(kinds)(draws)


def _string(draws: random.Random) -> dict[str, Any]:
    shortest = draws.randint(0, 3)
    bounds = {"minLength": shortest, "maxLength": shortest + draws.randint(0, 6)}
    form = {"format": draws.choice(_FORMATS)}
    rule = draws.choice([bounds, {"pattern": r"^[a-z]{1,4}-\d{2}$"}, form, form])
    return {"type": "string", **rule}


def _number(draws: random.Random) -> dict[str, Any]:
    low = draws.randint(-1000, 1000)
    return {"type": draws.choice(["integer", "number"]), "minimum": low, "maximum": low + draws.randint(0, 500)}


def _choice(draws: random.Random) -> dict[str, Any]:
    values = ["red", "grün", 7, -1.5, None, True, {"k": ["v"]}]
    return draws.choice([{"enum": draws.sample(values, 3)}, {"const": draws.choice(values)}])


def _simple(draws: random.Random) -> dict[str, Any]:
    return {"type": draws.choice(["boolean", "null", ["boolean", "null"]])}


def _object_within(depth: int) -> Any:
    return lambda draws: _object(draws, depth)


def _array_within(depth: int) -> Any:
    def array(draws: random.Random) -> dict[str, Any]:
        fewest = draws.randint(0, 2)
        items = _any(draws, depth - 1)
        return {"type": "array", "items": items, "minItems": fewest, "maxItems": fewest + draws.randint(0, 2)}

    return array


def _either_within(depth: int) -> Any:
    return lambda draws: {"anyOf": [_any(draws, depth - 1), _any(draws, depth - 1)]}
