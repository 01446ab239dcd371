"""Closes objects of JSON schemas that only list their properties, as vLLM does by default.

In JSON Schema such an object may have any other property too. Small models make some up, and may not come to an end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo_engine.json_schema.walk import changed_schema, only_lists, subschemas

_JOINS = frozenset({"allOf", "not", "if", "then", "else", "dependentSchemas", "unevaluatedProperties"})
_REFERS = frozenset({"$ref", "$dynamicRef", "anyOf", "oneOf"})
_PLAIN = ("string", "number", "integer", "boolean", "null")
"""The types of values that hold no others."""
_OF_OBJECTS = frozenset(
    {"properties", "required", "additionalProperties", "patternProperties", "propertyNames", "minProperties"}
)


def closed_schema(schema: Any) -> Any:
    """Return the same schema, in which an object that only lists properties has no others.

    A schema that is returned as it is has objects for which several schemas hold at once: each lists only a part. Or it
    has a `oneOf` that is not the same as `anyOf`: of objects that are closed, other ones are valid under two schemas.
    """
    if joins_schemas(schema) or any("oneOf" in each for each in subschemas(schema)):
        return schema
    return changed_schema(schema, _closed)


def joins_schemas(schema: Any) -> bool:
    """Return True if there may be objects for which several of the schemas within `schema` hold at once."""
    return any(map(_joins, subschemas(schema)))


def _joins(schema: Mapping[str, Any]) -> bool:
    """Return True if other schemas may hold for the objects of this one."""
    kinds = schema["type"] if isinstance(schema.get("type"), list) else [schema.get("type")]
    if all(kind in _PLAIN for kind in kinds):
        return False
    refers = schema.keys() & _REFERS
    return bool(schema.keys() & _JOINS) or len(refers) > 1 or bool(refers and schema.keys() & _OF_OBJECTS)


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    return {**schema, "additionalProperties": False} if schema.get("properties") and only_lists(schema) else schema
