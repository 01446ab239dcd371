"""Conditions of JSON schemas that are written as cases: if, dependentRequired, contains and others."""

from __future__ import annotations

import json
import random
from itertools import product
from typing import Any

import jsonschema
import pytest
from llguidance import LLMatcher, LLTokenizer

from octavo_engine.json_schema import cases, conditions
from octavo_engine.structured.grammar import GrammarError, exact_schema, json_schema_grammar
from octavo_engine.structured.grammar_check import check_grammar

TOKENS = LLTokenizer("byte")
FORMATS = jsonschema.Draft202012Validator.FORMAT_CHECKER
ABSENT = object()
VALUES = {"kind": ["a", "b", "other"], "on": [True, False], "size": [3, 7], "note": ["x", "yy"]}
OBJECTS = [
    {name: value for name, value in zip(VALUES, values, strict=True) if value is not ABSENT}
    for values in product(*([ABSENT, *each] for each in VALUES.values()))
]
HOST: dict[str, Any] = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["a", "b", "other"]},
        "on": {"type": "boolean"},
        "size": {"$ref": "#/$defs/size"},
        "note": {"type": "string"},
    },
    "$defs": {"size": {"type": "integer"}, "short": {"properties": {"note": {"maxLength": 1}}}},
}
RULES: list[Any] = [
    {"required": ["note"]},
    {"required": ["size", "on"]},
    {"properties": {"kind": {"const": "a"}}},
    {"properties": {"kind": {"enum": ["a", "b"]}}, "required": ["kind"]},
    {"properties": {"on": {"const": True}}},
    {"properties": {"on": False}},
    {"properties": {"size": {"minimum": 5}}},
    {"properties": {"size": {"exclusiveMaximum": 7}}, "required": ["size"]},
    {"properties": {"note": {"const": "x"}, "kind": {"const": "other"}}, "required": ["note"]},
    {"properties": {"note": {"type": "string"}}},
    {"type": "object", "title": "any", "properties": {}},
    True,
]


def rule(draws: random.Random, depth: int) -> Any:
    if depth == 0 or draws.random() < 0.4:
        return draws.choice(RULES)
    kind = draws.choice(["allOf", "anyOf", "not", "both"])
    if kind == "not":
        return {"not": rule(draws, depth - 1)}
    if kind == "both":
        return {**draws.choice(RULES[:-1]), "allOf": [rule(draws, depth - 1)]}
    return {kind: [rule(draws, depth - 1), rule(draws, depth - 1)]}


def condition(draws: random.Random, depth: int) -> dict[str, Any]:
    kind = draws.choice(["if", "if", "dependentRequired", "dependentSchemas", "not"])
    names = draws.sample(list(VALUES), 2)
    if kind == "if":
        branches = {key: rule(draws, 1) for key in ("then", "else") if draws.random() < 0.8}
        return {"if": rule(draws, depth), **branches}
    if kind == "not":
        return {"not": rule(draws, depth)}
    return {kind: {names[0]: [names[1]] if kind == "dependentRequired" else rule(draws, 1)}}


def taken(schema: dict[str, Any], values: list[Any]) -> list[Any]:
    """Return those of the values that may be answers under the schema."""
    whole, found = LLMatcher(TOKENS, json_schema_grammar(schema, compact=True)), []
    for value in values:
        matcher, written = (
            whole.deep_copy(),
            TOKENS.tokenize_str(json.dumps(value, separators=(",", ":"), ensure_ascii=False)),
        )
        if matcher.validate_tokens(written) == len(written) and matcher.consume_tokens(written):
            found += [value] * matcher.is_accepting()
    return found


def agree(schema: dict[str, Any], values: list[Any]) -> None:
    drafts = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    validator = drafts(schema, format_checker=FORMATS)
    allowed = [value for value in values if validator.is_valid(value)]
    if allowed:  # llguidance refuses a schema that allows nothing
        assert taken(schema, values) == allowed, schema


@pytest.mark.parametrize("seed", range(40))
def test_a_random_condition_allows_the_objects_that_a_validator_allows(seed: int) -> None:
    draws = random.Random(seed)
    required = draws.sample(list(VALUES), draws.randint(0, 1))
    agree({**HOST, "required": required, **condition(draws, 2)}, OBJECTS)
    agree({**HOST, "required": required, "allOf": [condition(draws, 1), condition(draws, 1)]}, OBJECTS)


CARD = {"properties": {"pay": {"enum": ["card", "cash"]}}, "required": ["pay"]}
OPEN = {"type": "object", "additionalProperties": {"type": "integer"}}


@pytest.mark.parametrize(
    ("schema", "values"),
    [
        # Both branches list new properties; the schema closes none of its objects.
        (
            {"type": "object", **CARD, "if": {"properties": {"pay": {"const": "card"}}},
             "then": {"properties": {"number": {"pattern": "^[0-9]{4}$"}}, "required": ["number"]},
             "else": {"properties": {"change": {"type": "boolean"}}}},
            [{"pay": "card", "number": "1234"}, {"pay": "card", "number": "x"}, {"pay": "cash"}, {"pay": "card"},
             {"pay": "cash", "change": True}],
        ),
        # An object within another, without `type`, of which the second case allows nothing.
        (
            {"type": "object", "properties": {"x": {**CARD, "if": CARD, "then": {"properties": {"n": {"const": 1}}},
                                                    "else": False}}},
            [{"x": {"pay": "cash", "n": 1}}, {"x": {"pay": "cash", "n": 2}}, {"x": {}}],
        ),
        ({**OPEN, "dependentRequired": {"a": ["b"]}}, [{"a": 1}, {"b": 1}, {"b": 1, "a": 1}, {"c": "x"}]),
        ({**OPEN, "dependencies": {"a": {"properties": {"a": {"minimum": 5}}}}}, [{"a": 7}, {"b": 1}]),
        ({**OPEN, "if": {"required": ["a"]}, "then": {"properties": {"z": {"maximum": 3}}}},
         [{"z": 2, "a": 1}, {"z": 5, "a": 1}, {"z": 5}, {"z": "x"}]),
        ({"type": "object", "properties": {"a": {}}, "then": False}, [{"a": 1}]),
        # What both ask of a property is not always all keywords of both.
        (
            {"type": "object", "properties": {"x": OPEN}, "if": {"required": ["x"]},
             "then": {"properties": {"x": {"properties": {"z": {"maximum": 3}}}}}},
            [{"x": {"z": 2}}, {"x": {"z": 4}}, {"x": {"z": "a"}}, {"x": {"b": 7}}],
        ),
        (
            {"type": "object", "properties": {"x": {"type": "array", "items": {"type": "integer"}}},
             "dependentSchemas": {"x": {"properties": {"x": {"prefixItems": [{"minimum": 5}]}}}}},
            [{"x": [5, 1]}, {"x": [1]}, {"x": ["a"]}, {"x": []}],
        ),
        (
            {"type": "object", "properties": {"x": {"const": 1}},
             "dependentSchemas": {"x": {"properties": {"x": {"const": True}}}}},
            [{"x": 1}, {"x": True}, {}],
        ),
        ({"type": "object", "properties": {"a": {}}, "unevaluatedProperties": False}, [{"a": 1}, {"b": 1}]),
        ({"type": "object", "properties": {"a": {}}, "unevaluatedProperties": True}, [{"a": 1}, {"b": 1}]),
        (
            {"allOf": [{"$ref": "#/$defs/base"}, {"properties": {"b": {"type": "integer"}}}],
             "unevaluatedProperties": False, "$defs": {"base": {"type": "object", **CARD}}},
            [{"pay": "card"}, {"pay": "card", "b": 1}, {"pay": "card", "c": 1}, {"b": 1}, {"pay": "x"}],
        ),
        # What is within a `not`, or in an `if` that does not hold, is not evaluated.
        ({"type": "object", "properties": {}, "unevaluatedProperties": False, "dependentRequired": {"b": ["a"]}},
         [{}, {"b": 1}, {"a": 1}, {"c": 1}]),
        ({"type": "object", "unevaluatedProperties": False, "not": {"required": ["a"]}}, [{}, {"a": 1}, {"b": 1}]),
        ({"type": "object", "unevaluatedProperties": False, "additionalProperties": {"type": "integer"},
          "dependentRequired": {"a": ["b"]}}, [{}, {"a": 1}, {"c": 1}, {"c": "x"}, {"b": 2, "a": 1}]),
        # What a property may be is also said by what all others may be.
        ({"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False,
          "if": {"properties": {"z": {"type": "string"}}}, "then": {"required": ["a"]}},
         [{}, {"a": 1}, {"z": 1}, {"a": 1, "z": 1}]),
        ({"type": "object", "additionalProperties": {"type": "integer"},
          "not": {"properties": {"z": {"type": "string"}}, "required": ["q"]}},
         [{}, {"q": 1}, {"z": 1}, {"z": []}, {"z": "x"}]),
        ({"type": "object", "properties": {"x": {"enum": [[1], {"k": 0, "l": 1}]}}, "if": {"required": ["x"]},
          "then": {"properties": {"x": {"enum": [[True], {"l": 1, "k": 0}]}}}},
         [{}, {"x": [1]}, {"x": [True]}, {"x": {"k": 0, "l": 1}}]),
        # One of several schemas
        (
            {"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 1}, "c": {"const": 1}},
             "oneOf": [{"required": ["a"]}, {"required": ["b"]}, {"required": ["c"]}]},
            [{}, {"a": 1}, {"b": 1}, {"c": 1}, {"a": 1, "b": 1}, {"a": 1, "c": 1}, {"a": 1, "b": 1, "c": 1}],
        ),
        (
            {"type": "object", "properties": {"k": {"enum": ["a", "b"]}, "n": {"type": "integer"}},
             "oneOf": [{"properties": {"k": {"const": "a"}}},
                       {"required": ["n"], "properties": {"n": {"minimum": 5}}}]},
            [{"k": "a"}, {"k": "b"}, {"k": "b", "n": 7}, {"k": "a", "n": 7}, {"k": "a", "n": 1}, {"k": "b", "n": 1}],
        ),
        (
            {"oneOf": [{"$ref": "#/$defs/card"}, {"type": "object", "properties": CARD["properties"]}],
             "$defs": {"card": {"type": "object", **CARD}}},
            [{}, {"pay": "card"}, {"pay": "x"}, 1],
        ),
        # Lists
        ({"type": "array", "contains": {"const": 5}}, [[], [5], [1, 5], [1, 2], [5, "x"], "5"]),
        ({"type": "array", "items": {"type": "integer"}, "contains": {"minimum": 5}, "minItems": 2, "maxItems": 3},
         [[5], [1, 7], [1, 2], [9, 1, 1], [1, 1, 1, 9], [1, "x"]]),
        ({"anyOf": [{"type": "array", "contains": False}, {"type": "null"}]}, [[], [1], None]),
        ({"anyOf": [{"type": "array", "contains": {"const": 1}, "maxItems": 0}, {"type": "null"}]}, [[], [1], None]),
        ({"type": "array", "contains": {}, "maxItems": 3}, [[], [1], [1, 2, 3, 4]]),
        ({"type": "array", "contains": {"const": 5}, "minContains": 0}, [[], [1]]),
        ({"type": "array", "contains": {"const": 5}, "minContains": 2},
         [[5], [5, 1, 5], [1, 5, 5, 5], [1, 1, 5], [1, 5, 1, 1, 1, 1, 1, 5]]),
        ({"type": "array", "contains": {"type": "string"}, "maxContains": 1, "minItems": 2},
         [[1, 2], ["a"], ["a", 1], [1, "a", 2], ["a", "b"], [1, 2, "a", "a"]]),
        ({"type": "array", "items": {"type": "number"}, "contains": {"minimum": 5}, "minContains": 0,
          "maxContains": 2}, [[], [1], [1, 7, 2, 9], [7, 7, 7], ["x"]]),
        ({"type": "array", "contains": {}, "minContains": 2, "maxContains": 3}, [[1], [1, 2], [1, 2, 3], [1, 2, 3, 4]]),
        ({"type": "array", "maxContains": 1}, [[], [1, 1]]),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "type": "array", "contains": {"const": 5},
          "minContains": 0, "maxContains": 1}, [[], [1], [5], [5, 5]]),
        *(({"$schema": draft, "type": "array", "items": {"type": "integer"}, "additionalItems": False,
            "contains": {"minimum": 5}}, [[], [1], [1, 7], [7, "x"], [7, 1, 1]])
          for draft in ("http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2019-09/schema")),
        ({"type": "array", "prefixItems": [{"type": "integer"}], "unevaluatedItems": False}, [[], [1], ["x"], [1, 2]]),
        ({"type": "array", "items": {"type": "integer"}, "unevaluatedItems": False}, [[1, 2], ["x"]]),
        # Plain values
        ({"type": "array", "items": {"enum": [1, 2, True, None]}, "uniqueItems": True},
         [[1, True], [1, 1], [None, 2, 1], [True, True]]),
        ({"type": "array", "items": {"type": "boolean"}, "uniqueItems": True}, [[], [True, False], [True, True]]),
        ({"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 4}, "uniqueItems": True},
         [[4, 1], [1, 1], [5], [1, 2, 3, 4]]),
        ({"propertyNames": {"minLength": 2, "maxLength": 3}, **OPEN}, [{"ab": 1}, {"a": 1}, {"äöü": 1}, {"abcd": 1}]),
        ({"propertyNames": {"format": "date"}, **OPEN}, [{"2024-02-29": 1}, {"2023-02-29": 1}]),
        ({"propertyNames": {"format": "uuid"}, **OPEN}, [{"01234567-89ab-cdef-0123-456789abcdef": 1}, {"0123": 1}]),
        ({"type": "number", "minimum": -3.4028234663852886e38, "maximum": 1.7976931348623157e308}, [-1.5, 10**15]),
        ({"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}, [-5, 2**40]),
        ({"type": "number", "minimum": 0, "maximum": 1, "multipleOf": 0.1}, [0, 0.1, 0.15, 0.3, 0.5, 1, 1.1]),
        ({"type": ["number", "null"], "minimum": 0, "maximum": 1, "multipleOf": 0.1}, [0.1, 0.15, 0.3, None, "x"]),
        ({"type": ["number", "string"], "minimum": 0, "maximum": 1, "multipleOf": 0.1}, [0.1, 0.15, None, "x"]),
        ({"minimum": 0, "maximum": 1, "multipleOf": 0.1}, [0.1, 0.15, None, "x"]),
        ({"type": "number", "multipleOf": 0.25, "minimum": 0, "maximum": 1}, [0, 0.25, 0.3]),
        (
            {"oneOf": [{"type": "object", "properties": {"k": {"const": "a"}}},
                       {"type": "object", "properties": {"k": {"const": "b"}}, "required": ["k"]}]},
            [{"k": "a"}, {"k": "b"}, {"k": "c"}, {}],
        ),
    ],
)  # fmt: skip
def test_what_is_said_by_cases_or_lists_of_values_is_enforced(schema: dict[str, Any], values: list[Any]) -> None:
    """Pydantic, Zod and people write these keywords, none of which llguidance knows."""
    agree(schema, values)


def test_objects_of_cases_have_no_other_properties() -> None:
    """A case that only lists its properties is closed, as are other objects that do."""
    schema = {"type": "object", **CARD, "if": CARD, "then": {"properties": {"n": {}}}}
    assert taken(schema, [{"pay": "card", "n": 1}, {"pay": "card", "other": 1}]) == [{"pay": "card", "n": 1}]


@pytest.mark.parametrize("kind", ["integer", ["number", "null"]])
def test_objects_with_two_rules_for_a_number_have_no_other_properties(kind: Any) -> None:
    """An `allOf` of plain values is no reason to leave objects open."""
    size = {"type": kind, "minimum": 3}
    schema = {
        "type": "object", "properties": {"size": size, "on": {"type": "boolean"}},
        "if": {"required": ["on"]}, "then": {"properties": {"size": {"minimum": 7}}},
    }  # fmt: skip
    values = [{"size": 5}, {"size": 7, "on": True}]
    assert taken(schema, [*values, {"size": 5, "on": True}, {"size": 2}, {"size": 7, "other": 1}]) == values


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"type": "string", "if": {"pattern": "a"}, "then": {"minLength": 3}}, '"if", "then"'),
        ({**HOST, "if": {"properties": {"note": {"pattern": "a"}}}, "then": {"required": ["on"]}}, '"if", "then"'),
        ({"type": "object", "properties": {"a": {}}, "if": {"properties": {"a": {"const": 1}}}, "then": False}, '"if"'),
        ({**HOST, "if": {"maxProperties": 2}, "then": {"required": ["on"]}}, '"if", "then"'),
        ({**HOST, "if": {"required": "on"}, "then": {"required": [5]}}, '"if", "then"'),
        ({**HOST, "if": {"$ref": "#/$defs/missing"}, "then": {"required": ["on"]}}, '"if", "then"'),
        ({**HOST, "dependentRequired": {str(each): ["on"] for each in range(9)}}, '"dependentRequired"'),
        ({**HOST, "dependentSchemas": {"on": {"$ref": "#"}}}, '"dependentSchemas"'),
        ({**HOST, "unevaluatedProperties": {"type": "string"}}, '"unevaluatedProperties"'),
        ({**HOST, "unevaluatedProperties": False, "not": {"properties": {"a": {"type": "null"}}}}, '"not", "unevalua'),
        ({**HOST, "unevaluatedProperties": False, "not": {"not": {"properties": {"a": {}}}}}, '"not", "unevaluated'),
        (
            {**HOST, "patternProperties": {"^a": {"type": "integer"}}, "not": {"properties": {"a": {"type": "null"}}}},
            '"not"',
        ),
        (
            {
                "type": "object",
                "properties": {"x": {"type": "string", "not": {"pattern": "a"}}},
                "not": {"properties": {"x": {"const": "b"}}},
            },
            '"not"',
        ),
        (
            {
                "type": "object",
                "properties": {"a": {}, "b": {"$ref": "#/properties/a"}},
                "dependentRequired": {"a": ["b"]},
            },
            '"dependentRequired"',
        ),
        (
            {
                "type": "object",
                "properties": {"c": {"$ref": "#/anyOf/1"}},
                "anyOf": [{"required": ["c"]}, {}],
                "dependentRequired": {"d": ["c"]},
            },
            '"dependentRequired"',
        ),
        ({"type": "array", "contains": {"const": 1}, "minContains": 9}, '"contains", "minContains"'),
        ({"type": "array", "contains": {"const": 1}, "maxContains": 1}, '"contains", "maxContains"'),
        ({"type": "array", "items": {"enum": ["x" * 60]}, "contains": {"const": 1}, "minContains": 4}, '"contains"'),
        ({"type": "array", "contains": {"const": 1}, "unevaluatedItems": False}, '"unevaluatedItems"'),
        ({"type": "array", "items": [{"type": "integer"}], "unevaluatedItems": False}, '"unevaluatedItems"'),
        (
            {
                "type": "array",
                "items": {"type": "string", "not": {"pattern": "x"}},
                "contains": {"const": "a"},
                "minContains": 0,
                "maxContains": 0,
            },
            '"contains"',
        ),
        ({"contains": {"const": 1}}, '"contains"'),
        ({"type": "array", "items": {"enum": ["x" * 600]}, "contains": {"const": 1}}, '"contains"'),
    ],
)
def test_conditions_without_few_cases_are_refused_by_name(schema: dict[str, Any], named: str) -> None:
    with pytest.raises(GrammarError, match=f"keywords that are not supported: {named}"):
        check_grammar(json_schema_grammar(schema))


def test_all_places_of_contained_items_are_limited() -> None:
    """Each list may be written as 28 others: a schema of 3,000 lists would have 60 MB."""
    schema = {"type": "array", "contains": {"type": "string"}, "minContains": 2, "maxContains": 2}
    text = exact_schema({"anyOf": [schema] * 40}).text
    assert 5 < text.count('"anyOf"') < 30 and text.count("maxContains") == 41 - text.count('"anyOf"')


def test_the_properties_that_cases_copy_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be many conditions, each of which copies many properties into each case."""
    schema = {**HOST, "if": {"required": ["on"]}, "then": {"required": ["size"]}}
    assert '"if"' not in exact_schema(schema).text
    monkeypatch.setattr(cases, "_MOST_COPIED", 10)
    assert '"if"' in exact_schema(schema).text


@pytest.mark.parametrize("long", [{"enum": ["x" * 20_000]}, {"$ref": "#/$defs/long"}])
def test_the_characters_that_are_compared_are_limited(long: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A schema of 115 KB with an enum of 12,000 texts took 3 s of a text worker's time."""
    schema = {
        "type": "object", "properties": {"a": {"$ref": "#/$defs/short"}},
        "if": {"required": ["a"]}, "then": {"properties": {"a": {"$ref": "#/$defs/both"}}},
        "$defs": {"short": {"enum": ["x"]}, "both": {"type": "string"}},
    }  # fmt: skip
    monkeypatch.setattr(cases, "_MOST_COPIED", 300)
    assert '"if"' not in exact_schema(schema).text
    schema["properties"] = {"a": long}
    schema["$defs"] |= {"long": {"enum": ["x" * 20_000]}}
    assert '"if"' in exact_schema(schema).text


def test_the_names_that_are_required_count_as_copied() -> None:
    names = [f"name{each}" for each in range(800)]
    schema = {"type": "object", "required": names[:400], "if": {"required": ["a"]}, "then": {"required": names[400:]}}
    assert '"if"' in exact_schema(schema).text
    schema["then"] = {"required": names[400:500]}
    assert '"if"' not in exact_schema(schema).text


def test_the_characters_of_all_cases_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each case copies what a property refers to, which may be long."""
    one = {**HOST, "if": {"required": ["on"]}, "then": {"required": ["size"]}}
    long = len(json.dumps(conditions.Conditions(one).divided(one)))
    monkeypatch.setattr(conditions, "_MOST_OF_ALL", 3 * long)
    divided = conditions.Conditions(one).divided
    assert ["anyOf" in divided(one) for _ in range(5)] == [True] * 3 + [False] * 2
    monkeypatch.setattr(conditions, "_MOST_CHARACTERS", long - 1)
    assert conditions.Conditions(one).divided(one) == one
