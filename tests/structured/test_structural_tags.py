"""The texts that structural tags allow."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
from llguidance import LLMatcher, LLTokenizer

from octavo_engine.structured.grammar import GrammarError, choice_grammar, exact_schema_grammar, literal
from octavo_engine.structured.grammar_check import check_grammar
from octavo_engine.structured.structural_tags import structural_tag_grammar

JSON = {
    "type": "json_schema",
    "json_schema": {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/A"}},
        "required": ["a"],
        "additionalProperties": False,
        "$defs": {"A": {"type": "integer"}},
    },
}


def tag(begin: str, content: Any, end: Any) -> dict[str, Any]:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def triggered(*, at_least_one: bool = False, stop_after_first: bool = False) -> dict[str, Any]:
    tags = [tag("<call=f>", JSON, "</call>"), tag("<call=g>", {"type": "any_text"}, ["</call>", "<end>"])]
    options = {"at_least_one": at_least_one, "stop_after_first": stop_after_first}
    return {"type": "triggered_tags", "triggers": ["<call="], "tags": tags, **options}


def separated(**options: bool) -> dict[str, Any]:
    tags, known = [tag("<a>", JSON, "</a>")], {"at_least_one": False, "stop_after_first": False, **options}
    return {"type": "tags_with_separator", "tags": tags, "separator": ",", **known}


WORD = {"type": "const_string", "value": 'say "'}
SEQUENCE = {
    "type": "sequence",
    "elements": [
        WORD,
        {"type": "regex", "pattern": r"\d/[a-z]+"},
        {"type": "or", "elements": [{"type": "const_string", "value": "!"}, {"type": "const_string", "value": "?"}]},
        {"type": "any_text"},
    ],
}
F, A = '<call=f>{"a": 1}</call>', '<a>{"a": 1}</a>'


def allows(form: dict[str, Any], text: str, tokens: LLTokenizer) -> bool:
    grammar = structural_tag_grammar(form)
    check_grammar(grammar)
    matcher = LLMatcher(tokens, grammar)
    ids = tokens.tokenize_str(text)
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("form", "text", "allowed"),
    [
        (triggered(), "", True),
        (triggered(), "Only text, and <calls.", True),
        (triggered(), f"One {F} and two {F} calls.", True),
        (triggered(), '<call=f>{"a": "1"}</call>', False),
        (triggered(), '<call=f>{"a": 1, "b": 2}</call>', False),
        (triggered(), '<call=f>{"a": 1}', False),
        (triggered(), "<call=h>", False),
        (triggered(), f"<call=g>any </text<end> {F}", True),
        (triggered(at_least_one=True), "text", False),
        (triggered(at_least_one=True), f"{F} text {F}", True),
        (triggered(stop_after_first=True), "text", True),
        (triggered(stop_after_first=True), f"text {F}", True),
        (triggered(stop_after_first=True), f"{F} text", False),
        (triggered(at_least_one=True, stop_after_first=True), F, True),
        (triggered(at_least_one=True, stop_after_first=True), f"text {F}", False),
        (separated(), "", True),
        (separated(at_least_one=True), "", False),
        (separated(), f"{A},{A}", True),
        (separated(), f"{A},", False),
        (separated(stop_after_first=True), f"{A},{A}", False),
        (SEQUENCE, 'say "4/abc? Yes.', True),
        (SEQUENCE, 'say "4/abc', False),
        (tag("<x>", {"type": "json_schema", "json_schema": True}, ""), "<x>[1]", True),
    ],
)
def test_texts(form: dict[str, Any], text: str, allowed: bool, tokens: LLTokenizer) -> None:
    assert allows(form, text, tokens) == allowed


def test_any_character_may_stand_in_a_text() -> None:
    """Control characters are written with escapes, and `::=` makes no GBNF of a grammar."""
    tokens = LLTokenizer("byte")
    words = "".join(map(chr, [*range(32), 127, 0x85, 0x2028])) + '"\\ ::='
    assert allows({"type": "const_string", "value": words}, words, tokens)
    assert allows(tag(f"<{words}", {"type": "any_text"}, f"{words}>"), f"<{words} text {words}>", tokens)
    assert allows({**triggered(), "triggers": ["\x7f"], "tags": [tag("\x7fa", WORD, "b")]}, 'x \x7fasay "b', tokens)
    choices = choice_grammar([words])
    check_grammar(choices)
    assert LLMatcher(tokens, choices).try_consume_tokens(tokens.tokenize_str(words)) == len(tokens.tokenize_str(words))


def test_triggers_share_the_rule_of_a_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    """The schema is checked once, however many triggers lead to it; what grows beyond the limit ends at once."""
    checked, written = Mock(wraps=exact_schema_grammar), Mock(wraps=literal)
    monkeypatch.setattr("octavo_engine.structured.structural_tags.exact_schema_grammar", checked)
    monkeypatch.setattr("octavo_engine.structured.structural_tags.literal", written)
    tags = [tag("<call=f>", JSON, "</call>")]
    several = {**triggered(), "triggers": ["<", "<c", "<call"], "tags": tags}
    assert structural_tag_grammar(several).count("%json") == 1 == checked.call_count
    written.reset_mock()
    triggers = ["<" + "c" * index for index in range(64)]
    tags = [tag("<" + "c" * 64, JSON, f"{index}" * 200) for index in range(128)]
    with pytest.raises(GrammarError, match="more than 262144 characters"):
        structural_tag_grammar({**triggered(), "triggers": triggers, "tags": tags})
    assert written.call_count < 64 * 128, "as many as all tags of all triggers have"


@pytest.mark.parametrize(
    ("form", "says"),
    [
        ({"type": "sequence", "elements": [{"type": "any_text"}, WORD]}, "any_text is supported only at the end"),
        (tag("<x>", triggered(), "</x>"), "triggered_tags is supported only at the end"),
        (tag("<x>", {"type": "any_text"}, ""), "needs an end"),
        ({**triggered(), "triggers": ["<call=f"]}, "begins with none of the triggers"),
        ({**triggered(), "triggers": ["<call=", "x"]}, "no tag begins with the trigger 'x'"),
        ({**triggered(), "triggers": ["<call=", "<call="]}, "'<call=' is given twice"),
        ({"type": "const_string", "value": "\ud800"}, "unpaired surrogate"),
        ({"type": "regex", "pattern": "(a"}, "regex"),
    ],
)
def test_what_is_refused(form: dict[str, Any], says: str) -> None:
    with pytest.raises(GrammarError, match=says):
        check_grammar(structural_tag_grammar(form))
