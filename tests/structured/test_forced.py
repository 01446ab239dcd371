"""The grammar of tool calls that a request requires, for tools as frameworks describe them."""

from __future__ import annotations

from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from octavo_engine.output_parsing.formats.forced import forced_schema
from octavo_engine.output_parsing.formats.tool import Tool
from octavo_engine.structured.grammar import json_schema_grammar

NESTED: dict[str, Any] = {
    "type": "object",
    "properties": {"people": {"type": "array", "items": {"$ref": "#/$defs/Person"}}, "const": {"$ref": "#/$defs/Age"}},
    "required": ["people"],
    "$defs": {
        "Person": {
            "type": "object",
            "properties": {
                "age": {"$ref": "#/$defs/Age"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/Person"}},
            },
            "required": ["age"],
            "additionalProperties": False,
        },
        "Age": {"type": "integer", "default": {"$ref": "#/nowhere"}},
    },
}
TREE = {"type": "object", "properties": {"leaves": {"type": "array", "items": {"$ref": "#"}}}}
ANY = {"type": "object", "additionalProperties": True}
LOOSE = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["b"]}
EITHER = {"type": "object", "anyOf": [{"properties": {"a": {"type": "integer"}}}, {"required": ["b"]}]}


def allows(tools: list[Tool], text: str, tokens: LLTokenizer, *, several: bool = True) -> bool:
    matcher = LLMatcher(tokens, json_schema_grammar(forced_schema(tools, several=several)))
    assert not matcher.is_error(), matcher.get_error()
    ids = tokens.tokenize_str(text)
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


@pytest.mark.parametrize("others", [[], [Tool("now")]], ids=["alone", "beside another"])
@pytest.mark.parametrize(
    ("parameters", "arguments", "allowed"),
    [
        (NESTED, '{"people": [{"age": 3, "children": [{"age": 1}]}]}', True),
        (NESTED, '{"people": [{"age": "3"}]}', False),
        (NESTED, '{"people": [{"age": 3, "children": [{}]}]}', False),
        (NESTED, '{"people": [], "const": 7}', True),
        (NESTED, '{"people": [], "const": "7"}', False),
        (NESTED, '{"people": [], "made_up": 7}', False),
        ({"$id": "https://example.com/a", **TREE}, '{"leaves": [{"leaves": []}]}', True),
        (TREE, '{"leaves": [{"leaves": 5}]}', False),
        (ANY, '{"made_up": 7}', True),
        (LOOSE, '{"b": 7}', True),
        (EITHER, '{"b": 7}', True),
        ({}, "{}", True),
        ({}, '{"made_up": 7}', False),
    ],
)  # fmt: skip
def test_arguments_follow_their_own_schema(
    parameters: dict[str, Any], arguments: str, allowed: bool, others: list[Tool], tokens: LLTokenizer
) -> None:
    """References within a tool's schema mean that schema, and a list of arguments is all of them."""
    text = f'[{{"name": "f", "arguments": {arguments}}}]'
    assert allows([*others, Tool("f", parameters)], text, tokens) == allowed
