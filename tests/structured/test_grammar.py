"""The grammars that requests may ask for, and the errors of those that they may not."""

from __future__ import annotations

import pytest
from llguidance import LLMatcher, LLTokenizer

from octavo_engine.structured.grammar import (
    GrammarError,
    check_grammar,
    choice_grammar,
    json_schema_grammar,
    lark_grammar,
    regex_grammar,
)

WRONG = {
    "a type": (lambda: json_schema_grammar({"type": "cheese"}), "cheese"),
    "no JSON": (lambda: json_schema_grammar("{"), "EOF"),
    "no object": (lambda: json_schema_grammar("[1]"), ""),
    "what a schema says that is not computed": (
        lambda: json_schema_grammar({"type": "array", "uniqueItems": True}),
        "uniqueItems",
    ),
    "a reference elsewhere": (lambda: json_schema_grammar({"$ref": "http://example.com/x"}), "example.com"),
    "a schema that allows nothing": (
        lambda: json_schema_grammar({"type": "integer", "minimum": 5, "maximum": 4}),
        "",
    ),
    "a regex": (lambda: regex_grammar("(a"), "regex"),
    "a regex that looks back": (lambda: regex_grammar(r"(a)\1"), "backreferences"),
    "lark": (lambda: lark_grammar("start: missing"), "missing"),
    "gbnf": (lambda: lark_grammar("root ::= ("), "neither Lark nor GBNF"),
    "so many alternatives that one mask takes seconds": (lambda: json_schema_grammar({"type": ["object"] * 5000}), ""),
    "a text that is too long": (lambda: regex_grammar("a" * (1 << 19)), "at most 262144 are allowed"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_reported(name: str) -> None:
    make, says = WRONG[name]
    with pytest.raises(GrammarError) as caught:
        check_grammar(make())
    assert says in str(caught.value)
    assert len(str(caught.value)) <= 600


def test_choices_may_hold_any_characters() -> None:
    check_grammar(choice_grammar(['"', "\\", "\n", "é", "\u2028", "%json {}", "//", "a" * 4096]))


def test_compact_json_has_nothing_between_its_tokens() -> None:
    tokens = LLTokenizer("byte")
    schema = {"type": "array", "items": {"type": "object", "properties": {"a b": {"type": "integer"}}}}
    for text, where in (('[{"a b":1},{}]', (True, True)), ('[{"a b": 1}, {}]', (True, False)), ("[ ]", (True, False))):
        written = tokens.tokenize_str(text)
        grammars = [json_schema_grammar(schema, compact=compact) for compact in (False, True)]
        taken = [LLMatcher(tokens, grammar).validate_tokens(written) == len(written) for grammar in grammars]
        assert tuple(taken) == where, text
