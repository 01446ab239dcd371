"""Writes `propertyNames` of JSON schemas, which llguidance does not have, as `properties` or `patternProperties`.

Pydantic uses it for a `dict` whose keys are an enumeration or a Literal, and Zod for every `z.record`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from octavo_engine.json_schema.formats import with_exact_format
from octavo_engine.json_schema.walk import ANNOTATIONS, referred

_NAMES = "propertyNames"
_REST = "additionalProperties"
_UUID = "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"
_LONGEST_REST = 100
"""Characters of the schema of the values that is repeated for each name, so that the whole stays small."""


def without_property_names(schema: dict[str, Any], root: Any) -> dict[str, Any]:
    """Return a schema that allows the same and has no `propertyNames`. `root` is the whole schema, for `$ref`.

    A schema whose `propertyNames` cannot be written in another way is returned as it is, and llguidance refuses it.
    """
    if _NAMES not in schema:
        return schema
    others = {key: value for key, value in schema.items() if key != _NAMES}
    rule = _rule(referred(schema[_NAMES], root))
    rest, listed = others.get(_REST, True), others.get("properties", {})
    if rule == {}:
        return others
    if rule is None or "patternProperties" in others or not isinstance(listed, dict):
        return schema
    if (pattern := rule.get("pattern")) is not None:
        return schema if listed else {**others, "patternProperties": {pattern: rest}, _REST: False}
    names = dict.fromkeys(name for name in rule["enum"] if isinstance(name, str))
    if not listed.keys() <= names.keys() or len(json.dumps(rest)) > _LONGEST_REST:
        return schema
    unlisted = {} if rest is False else dict.fromkeys(names, rest)
    return {**others, "properties": unlisted | listed, _REST: False}


def _rule(names: Any) -> dict[str, Any] | None:
    """Return the one keyword that limits the names, as `enum` or `pattern`; none if any name is allowed.

    None if there is another keyword, or more than one.
    """
    if names is True:
        return {}
    if not isinstance(names, Mapping) or names.get("type", "string") != "string":
        return None
    rule = {key: value for key, value in names.items() if key != "type" and key not in ANNOTATIONS}
    if rule.keys() == {"const"}:
        return {"enum": [rule["const"]]}
    if rule.keys() == {"format"}:
        rule = {"pattern": _UUID} if rule["format"] == "uuid" else with_exact_format(rule)
    elif rule and rule.keys() <= {"minLength", "maxLength"}:
        least, most = rule.get("minLength", 0), rule.get("maxLength", "")
        return (
            {"pattern": rf"^[\s\S]{{{least},{most}}}$"}
            if type(least) is int and (most == "" or type(most) is int)
            else None
        )
    valid = isinstance(rule.get("enum", []), list) and isinstance(rule.get("pattern", ""), str)
    return rule if valid and (not rule or rule.keys() in ({"enum"}, {"pattern"})) else None
