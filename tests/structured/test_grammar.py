"""The grammars that requests may use, and the errors for those that they may not."""

from __future__ import annotations

import json
import os
import re
import signal
from collections import OrderedDict
from collections.abc import Callable, Iterator
from datetime import date, datetime
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import jsonschema
import pytest
from llguidance import LLMatcher, LLTokenizer

from octavo_engine.json_schema import growth, items, patterns
from octavo_engine.structured import grammar_check
from octavo_engine.structured.grammar import (
    GrammarError,
    choice_grammar,
    exact_schema,
    json_schema_grammar,
    lark_grammar,
    regex_grammar,
)
from octavo_engine.structured.grammar_check import CheckImpossibleError, SlowGrammarError, check_grammar
from octavo_engine.structured.structural_tags import structural_tag_grammar
from octavo_engine.structured.vocabulary import outline
from octavo_engine.text.tokenizer import Tokenizer

WRONG = {
    "a type": (lambda: json_schema_grammar({"type": "cheese"}), "cheese"),
    "no JSON": (lambda: json_schema_grammar("{"), "not valid JSON"),
    "no object": (lambda: json_schema_grammar("[1]"), ""),
    "what a schema says that is not computed": (
        lambda: json_schema_grammar({"type": "array", "uniqueItems": True}),
        'the schema has keywords that are not supported: "uniqueItems"',
    ),
    "a schema of another document": (
        lambda: json_schema_grammar({"items": {"$ref": "https://example.com/item.json#/$defs/a"}}),
        "a $ref leads out of the schema, to 'https://example.com/item.json'; put what it refers to into",
    ),
    "a schema of a file": (
        lambda: json_schema_grammar({"$ref": "item.json"}),
        "a $ref leads out of the schema, to 'item.json'",
    ),
    "a schema that is missing": (
        lambda: json_schema_grammar({"$ref": "#/$defs/a"}),
        "a $ref leads to '/$defs/a', which the schema does not have",
    ),
    "one of several that may all match": (lambda: json_schema_grammar({"oneOf": [{"minLength": 1}, {}]}), "use anyOf"),
    "a pattern": (lambda: json_schema_grammar({"type": "string", "pattern": "("}), "not valid: unclosed group"),
    "a reference elsewhere": (lambda: json_schema_grammar({"$ref": "http://example.com/x"}), "example.com"),
    "a schema that allows nothing": (
        lambda: json_schema_grammar({"type": "integer", "minimum": 5, "maximum": 4}),
        "",
    ),
    "a schema without values": (lambda: json_schema_grammar({"not": {}}), "the schema allows no value"),
    "a regex": (lambda: regex_grammar("(a"), "the regular expression is not valid: unclosed group"),
    "a regex with a border of words": (lambda: regex_grammar(r"\ba\b"), "word boundaries and look-around are not"),
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


def test_a_grammar_that_would_take_seconds_ends_a_child_process_alone() -> None:
    """llguidance's own limits do not bound the time; a schema of 1 KB takes more than 4 s."""
    patterns = [{"pattern": f"(a|b)*a(a|b){{{each}}}"} for each in range(30)]
    with pytest.raises(SlowGrammarError, match=r"more than .* s of CPU time to compile; use fewer patterns"):
        check_grammar(json_schema_grammar({"type": "string", "allOf": patterns}))


def test_a_grammar_that_ends_its_child_process_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_check, "error_in", lambda *_: os._exit(1))
    monkeypatch.setattr(grammar_check, "most_seconds", lambda: 1.0)
    with pytest.raises(GrammarError, match="nested too deep"):
        check_grammar(regex_grammar("never checked before"))


def test_a_grammar_that_could_be_compiled_is_not_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_check, "_passed", OrderedDict())
    monkeypatch.setattr(grammar_check, "MOST_PASSED", 2)
    grammars = [regex_grammar(f"checked twice {each}") for each in range(3)]
    for grammar in grammars:
        check_grammar(grammar)
    monkeypatch.setattr(grammar_check, "error_in", lambda *_: "it was compiled again")
    for grammar in grammars[1:]:
        check_grammar(grammar)
    with pytest.raises(GrammarError, match="compiled again"):  # the digests of two others are kept
        check_grammar(grammars[0])


def test_a_control_token_that_one_vocabulary_has_is_unknown_in_another(tokenizer: Tokenizer) -> None:
    grammar = lark_grammar("start: <|assistant|>")
    check_grammar(grammar)
    with pytest.raises(GrammarError, match="unknown special token"):
        check_grammar(grammar, outline(tokenizer))


def test_a_fork_that_fails_leaves_no_file_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_process() -> int:
        raise BlockingIOError

    monkeypatch.setattr(os, "fork", no_process)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(CheckImpossibleError, match="cannot be checked now"):
        check_grammar(regex_grammar("never forked for"))
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.fixture
def no_killed_child() -> Iterator[None]:
    """No child of an earlier test is left, which waits for idle cores to end, and none of this test."""
    while grammar_check._killed:
        os.waitpid(grammar_check._killed.pop(), 0)
    yield
    while grammar_check._killed:
        os.waitpid(grammar_check._killed.pop(), 0)


@pytest.mark.usefixtures("no_killed_child")
def test_a_child_that_gets_too_little_of_idle_cores_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """With low priority from its start, it delayed the threads of steps by 2 ms again and again."""

    def answer(*_: object) -> str:
        if os.sched_getscheduler(0) == os.SCHED_IDLE:
            signal.pause()
        return f"answered with policy {os.sched_getscheduler(0)}"

    grammar_check.most_seconds()
    monkeypatch.setattr(grammar_check, "error_in", answer)
    with pytest.raises(GrammarError, match=f"answered with policy {os.SCHED_OTHER}"):
        check_grammar(regex_grammar("waits for its turn"))


@pytest.mark.usefixtures("no_killed_child")
def test_a_child_on_idle_cores_answers_where_there_are_any(monkeypatch: pytest.MonkeyPatch) -> None:
    grammar_check.most_seconds()
    monkeypatch.setattr(grammar_check, "_IDLE_SHARE", 0)
    monkeypatch.setattr(grammar_check, "_IDLE_SECONDS", 1e9)
    monkeypatch.setattr(grammar_check, "error_in", lambda *_: f"answered with policy {os.sched_getscheduler(0)}")
    with pytest.raises(GrammarError, match=f"answered with policy {os.SCHED_IDLE}"):
        check_grammar(regex_grammar("runs at once"))


@pytest.mark.usefixtures("no_killed_child")
def test_a_child_that_hangs_ends_with_its_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker is killed after a while, and left the child, which stayed for ever."""
    reading, writing = os.pipe()

    def hang(*_: object) -> None:
        os.write(writing, b"hangs")
        signal.pause()

    monkeypatch.setattr(grammar_check, "error_in", hang)
    grammar_check.most_seconds()
    if (worker := os.fork()) == 0:
        try:
            check_grammar(regex_grammar("hangs"))
        finally:
            os._exit(1)  # else this process would run the other tests too
    os.close(writing)
    assert os.read(reading, 5) == b"hangs"
    os.kill(worker, signal.SIGKILL)
    os.waitpid(worker, 0)
    with os.fdopen(reading, "rb") as pipe:
        pipe.read()  # ends when nobody has the other end any more; a second child may have written meanwhile


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


@pytest.mark.parametrize(
    ("regex", "text", "taken"),
    [
        (r"\d", "7", True), (r"\d", "\u0663", False), (r"[^\d]", "\u0663", True), (r"[\d.-]{3}", "-1.", True),
        (r"\\d", "\\d", True), (r"\\d", "7", False), (r"\D", "a", True), (r"\w", "\u00fc", True),
    ],
)  # fmt: skip
def test_digits_of_a_regex_are_those_that_every_reader_knows(regex: str, text: str, taken: bool) -> None:
    tokens = LLTokenizer("byte")
    matcher, written = LLMatcher(tokens, regex_grammar(regex)), tokens.tokenize_str(text)
    assert (matcher.validate_tokens(written) == len(written)) == taken


def takes(tokens: LLTokenizer, schema: dict[str, Any], value: Any) -> bool:
    matcher = LLMatcher(tokens, json_schema_grammar(schema, compact=True))
    written = tokens.tokenize_str(json.dumps(value, separators=(",", ":")))
    return bool(matcher.validate_tokens(written) == len(written) and matcher.consume_tokens(written)) and (
        matcher.is_accepting()
    )


def readable(read: Callable[[str], object], text: str) -> bool:
    try:
        read(text)
    except ValueError:
        return False
    return True


def test_dates_are_those_of_the_calendar() -> None:
    tokens = LLTokenizer("byte")
    months = [f"2023-{month:02d}-{day:02d}" for month in (0, 1, 2, 4, 11, 12, 13) for day in (0, 1, 28, 29, 30, 31, 32)]
    for text in months + [f"{year:04d}-02-29" for year in (0, 4, 100, 400, 1900, 2000, 2023, 2024, 2100, 9996)]:
        assert takes(tokens, {"type": "string", "format": "date"}, text) == readable(date.fromisoformat, text), text
        moment = f"{text}T00:00:00Z"
        assert takes(tokens, {"format": "date-time"}, moment) == readable(datetime.fromisoformat, moment), text


@pytest.mark.parametrize(
    ("schema", "text", "taken"),
    [
        ({"format": "time"}, "23:59:59.123456-23:59", True),
        ({"format": "time"}, "23:59:60Z", False),
        ({"format": "time"}, "24:00:00Z", False),
        ({"format": "date-time"}, "2024-06-30T23:59:60Z", False),
        ({"format": "date", "pattern": "^2024"}, "2024-02-29", True),
        ({"format": "date", "pattern": "^2024"}, "2023-02-28", False),
        ({"format": "date", "pattern": "^2023"}, "2023-02-29", False),
        ({"format": "hostname"}, ".".join(["a" * 63] * 3 + ["b" * 61]), True),
        ({"format": "hostname"}, ".".join(["a" * 63] * 3 + ["b" * 62]), False),
        ({"format": "hostname", "maxLength": 3}, "a.bc", False),
        ({"anyOf": [{"$ref": "#/$defs/day"}], "$defs": {"day": {"type": "string", "format": "date"}}},
         "0000-01-01", False),
        ({"enum": [{"format": "date"}, "x"]}, "x", True),
        *[({"format": "uri-reference"}, text, True)
          for text in ("", "/", "/a/b?c=/#?", "a/b", "..", "//host/a", "https://h.example:80/a%20b", "?x", "#f")],
        *[({"format": "iri-reference"}, text, False)
          for text in (" ", "//", "https://", "%zz", "a:b", "ü", "a\\b", "#a#b")],
        *[({"format": "uri-template"}, text, True)
          for text in ("", "/a/{b}", "http://h{/x}{?a,b*}", "{+x:3}", "a%20b")],
        *[({"format": "uri-template"}, text, False) for text in ("{", "}", "{}", "{a b}", "{a:0}", "{,a}", "<", "%x")],
        *[({"format": "json-pointer"}, text, True) for text in ("", "/a/b~0~1", "//", "/a b")],
        *[({"format": "json-pointer"}, text, False) for text in ("a", "/~", "#/a")],
        *[({"format": "relative-json-pointer"}, text, True) for text in ("0", "1#", "2/a")],
        *[({"format": "relative-json-pointer"}, text, False) for text in ("", "01", "/a", "1#a")],
        *[({"format": "regex"}, text, True)
          for text in ("", r"^[a-z0-9_]+\.(?:py|toml)$", r"\d{2,}|[^\s\]]*?"[:-1], "a b", "(a|b+)?c")],
        *[({"format": "regex"}, text, False)
          for text in ("(", "[", "a**", "a{", "\\", "[z-a]", "x{2,1}", ")", "(a|)*+", "a|*", "[]", "()")],
        ({"format": "iri"}, "https://h.example/a", True), ({"format": "iri"}, "/a", False),
        ({"format": "idn-email"}, "a@h.example", True), ({"format": "idn-email"}, "a", False),
        ({"format": "idn-hostname"}, "h.example", True), ({"format": "idn-hostname"}, "-h", False),
        ({"format": "password", "minLength": 2}, "a b", True), ({"format": "password", "minLength": 2}, "a", False),
        ({"format": "int64"}, 5, True), ({"type": "integer", "format": "int64"}, "5", False),
    ],
)  # fmt: skip
def test_formats_are_exact_wherever_they_stand(schema: dict[str, Any], text: str, taken: bool) -> None:
    assert takes(LLTokenizer("byte"), schema, text) == taken


@pytest.mark.parametrize(
    ("schema", "value", "taken"),
    [
        ({"type": "integer", "minimum": 2**53 + 1}, 2**53, False),
        ({"type": "integer", "minimum": 2**53 + 1}, 2**53 + 2, True),
        ({"type": "integer", "maximum": 2**63 - 1}, 2**63 - 1, True),
        ({"type": "integer", "maximum": 2**63 - 1}, 2**63, False),
        ({"type": "integer", "maximum": 2**62 + 1}, 2**62 + 1, False),
        ({"type": "integer", "exclusiveMaximum": -(2**53) - 1}, -(2**53) - 1, False),
        ({"items": {"type": "number", "minimum": 0.30000000000000004}}, [0.3], False),
        ({"items": {"type": "number", "minimum": 0.30000000000000004}}, [0.31], True),
        ({"properties": {"const": {"const": 2**53}, "enum": {"enum": [0.1, 1e22]}}}, {"const": 2**53}, True),
        ({"type": "integer", "default": 2**60 + 1}, 5, True),
    ],
)  # fmt: skip
def test_numbers_are_exact_or_bounds_allow_less(schema: dict[str, Any], value: Any, taken: bool) -> None:
    """llguidance reads numbers as 64-bit floats: under a minimum of 2**53 + 1 it allowed 2**53."""
    assert takes(LLTokenizer("byte"), schema, value) == taken


def test_a_bound_is_never_rounded_to_infinity() -> None:
    assert "Infinity" not in json_schema_grammar({"type": "number", "minimum": 1.7976931348623157e308})


@pytest.mark.parametrize("bound", [10**400, int(float.fromhex("0x1.fffffffffffffp+1023")) + 1], ids=["1e400", "max"])
def test_a_bound_beyond_all_floats_is_a_wrong_grammar(bound: int) -> None:
    with pytest.raises(GrammarError):
        check_grammar(json_schema_grammar({"type": "integer", "minimum": bound}))


@pytest.mark.parametrize("value", [2**53 + 1, -(2**60), 123456789.12345679, [{"a": 2**70}]], ids=str)
def test_a_constant_that_no_answer_could_have_exactly_is_refused(value: Any) -> None:
    """The answer under a const of 2**53 + 1 was 2**53."""
    for schema in ({"const": value}, {"anyOf": [{"enum": ["x", value]}]}):
        with pytest.raises(GrammarError, match=r"has too many digits.*give it as a string"):
            json_schema_grammar(schema)
        with pytest.raises(GrammarError, match="has too many digits"):
            structural_tag_grammar({"type": "json_schema", "json_schema": schema})


@pytest.mark.parametrize("others", [None, 5, "x", {}, [5]], ids=str)
def test_a_format_beside_what_is_no_list_of_schemas_is_a_wrong_grammar(others: Any) -> None:
    with pytest.raises(GrammarError):
        check_grammar(json_schema_grammar({"type": "string", "format": "date", "pattern": "x", "allOf": others}))


def test_what_looks_like_a_format_is_left_alone() -> None:
    schema = {
        "properties": {"format": {"const": {"format": "date"}}, "const": {"format": "date"}},
        "default": {"format": "time"},
    }
    exact = exact_schema(schema).value
    assert exact["properties"]["format"] == schema["properties"]["format"] and exact["default"] == schema["default"]
    assert "pattern" in exact["properties"]["const"]
    assert exact_schema({"format": "banana"}).value == {}  # JSON Schema does not define it


@pytest.mark.parametrize(
    ("schema", "text", "taken"),
    [
        ({"properties": {"a": {"type": "integer"}}}, r'{"\u0061":"x"}', False),
        ({"properties": {"a": {"type": "integer"}}}, r'{"a":1,"\u0061":"x"}', False),
        ({"properties": {"a": {"type": "integer"}}}, r'{"b\n\"\\":"x"}', True),
        ({"properties": {"a": False}}, r'{"\u0061":1}', False),
        ({"patternProperties": {"^a+$": {"type": "integer"}}}, r'{"\u0061":"x"}', False),
        ({"properties": {"a": {"const": "\x1b"}}}, r'{"a":"\u001b"}', True),
        ({"properties": {"a\x1b": {}}}, r'{"a\u001b":1}', True),
        ({"properties": {"a": {"pattern": r"^\x1b\v\x{7}$"}}}, r'{"a":"\u001b\u000b\u0007"}', True),
        ({"properties": {"a": {"pattern": r"^[\x00-\x1f]+$"}}}, r'{"a":"\u0007\u001f"}', True),
        ({"properties": {"a": {"pattern": r"^[^\x00-\x1f]+$"}}}, r'{"\u0061":1}', False),
        ({"properties": {"a": {"pattern": r"^\\x1b$"}}}, r'{"\u0061":1}', False),
        ({"properties": {"a": {"type": "integer", "description": "\x1b"}}}, r'{"\u0061":"x"}', False),
        ({"title": "\x1b", "examples": ["\x1b"], "properties": {"a": False}}, r'{"\u0061":1}', False),
    ],
)  # fmt: skip
def test_no_other_spelling_of_a_name_escapes_its_schema(schema: dict[str, Any], text: str, taken: bool) -> None:
    tokens = LLTokenizer("byte")
    of_any_names = {"type": "object", "additionalProperties": True, **schema}
    tag = {"type": "json_schema", "json_schema": of_any_names}
    written = tokens.tokenize_str(text)
    for grammar in (json_schema_grammar(of_any_names), structural_tag_grammar(tag)):
        assert (LLMatcher(tokens, grammar).validate_tokens(written) == len(written)) == taken


_ONE = {"properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("schema", "closed"),
    [
        ({"type": "object", "title": "One", **_ONE}, True),
        ({"examples": [{"a": 1}], "default": {"a": 1}, "example": {"a": 2}, "deprecated": True, **_ONE}, True),
        ({**_ONE, "additionalProperties": {"type": "integer"}}, False),
        ({**_ONE, "additionalProperties": True}, False),
        ({**_ONE, "patternProperties": {"^b": {}}}, False),
        ({**_ONE, "required": ["a", "b"]}, False),
        ({**_ONE, "minProperties": 2}, False),
        ({"$ref": "#/$defs/One", "$defs": {"One": _ONE}}, True),
        ({"anyOf": [_ONE, {"type": "null"}], "title": "One"}, True),
        ({"anyOf": [_ONE, {"properties": {"b": {}}}], "properties": {"b": {}}}, False),
        ({"allOf": [_ONE, {"properties": {"b": {}}}]}, False),
        ({"$ref": "#/$defs/One", "$defs": {"One": _ONE}, "properties": {"b": {}}}, False),
        ({"type": "object"}, False),
    ],
)
def test_an_object_that_only_lists_its_properties_has_no_others(schema: dict[str, Any], closed: bool) -> None:
    """Small models made up one property after another until max_tokens."""
    tokens = LLTokenizer("byte")
    within = {"type": "array", "items": schema, "$defs": schema.get("$defs", {})}
    assert takes(tokens, schema, {"a": 1}) == ("b" not in schema.get("required", []) and "minProperties" not in schema)
    assert takes(tokens, schema, {"a": 1, "b": 2}) != closed
    assert takes(tokens, within, [{"a": 1, "b": 2}]) != closed
    # and in structural tags, of which a response_format beside tools is one
    written = tokens.tokenize_str('{"a": 1, "b": 2}')
    tag = LLMatcher(tokens, structural_tag_grammar({"type": "json_schema", "json_schema": schema}))
    assert (tag.validate_tokens(written) == len(written)) != closed


_OF_A = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
_OF_B = {"type": "object", "properties": {"b": {"type": "string"}}, "required": ["b"]}
_CAT = {"type": "object", "properties": {"kind": {"const": "cat"}, "a": {}}, "required": ["kind"]}
_DOG = {"type": "object", "properties": {"kind": {"enum": ["dog", "wolf"]}, "b": {}}, "required": ["kind"]}
_DEFS = {"a": _OF_A, "b": _OF_B, "cat": _CAT, "dog": _DOG, "closed": {**_OF_B, "additionalProperties": False}}
_DEFS["many"] = {"enum": list(range(257))}
_DEFS |= {"again": {"$ref": "#/$defs/a", "title": "A"}, "thrice": {"$ref": "#/$defs/again"}}
_DEFS["circle"] = {"$ref": "#/$defs/circle"}


def _one_of(*each: Any) -> dict[str, Any]:
    return {"oneOf": [{"$ref": f"#/$defs/{one}"} if isinstance(one, str) else one for one in each]}


@pytest.mark.parametrize(
    ("schema", "taken", "refused"),
    [
        (_one_of("a", {"type": "null"}), [{"a": 1}, None], [{"b": "x"}, "x"]),
        (_one_of("a", {"type": "array", "items": {"$ref": "#/$defs/a"}}), [{"a": 1}, [{"a": 1}]], [1]),
        (_one_of("a", {"enum": [None, "none"]}), [{"a": 1}, "none"], [1]),
        (_one_of({"type": "integer"}, {"type": ["string", "null"]}), [1, "x", None], [1.5]),
        (_one_of("cat", "dog", {"const": 1}), [{"kind": "cat"}, {"kind": "wolf"}, 1], [{"kind": "bird"}, {}]),
        (_one_of("a", "closed"), [{"a": 1}, {"b": "x"}], [{}, {"a": 1, "b": "x"}]),
        (_one_of(_OF_A, _OF_B), [{"a": 1}, {"b": "x"}], [{}, {"a": 1, "b": "x"}]),
        ({"anyOf": [_one_of({"$ref": "#/anyOf/1"}, {"type": "null"}), _OF_A]}, [None, {"a": 1}], [1]),
        ({"type": "object", "properties": {"next": _one_of({"$ref": "#"}, {"type": "null"})}, "required": ["next"]},
         [{"next": None}, {"next": {"next": None}}], [{"next": 1}, {}]),
        (_one_of("thrice", {"type": "null"}), [{"a": 1}, None], [{"b": "x"}, "x"]),
        ({"$ref": "#/$defs/list", "$defs": {"list": {
            "type": "object", "properties": {"next": _one_of({"$ref": "#"}, {"type": "null"})}, "required": ["next"]}}},
         [{"next": None}, {"next": {"next": None}}], [{"next": 1}, {}]),
        ({"items": _one_of(_OF_A, _OF_B, {"type": "null"})}, [[{"a": 1}, None]], [[{"a": 1, "b": "x"}]]),
    ],
)  # fmt: skip
def test_one_of_schemas_is_any_of_them_where_a_value_is_valid_under_one_only(
    schema: dict[str, Any], taken: Any, refused: Any
) -> None:
    """OpenAPI writes a reference that may be null as a `oneOf` of two, and llguidance follows no references there."""
    tokens, whole = LLTokenizer("byte"), {**schema, "$defs": _DEFS | schema.get("$defs", {})}
    for value in taken:
        jsonschema.validate(value, whole)
        assert takes(tokens, whole, value), value
    for value in refused:
        assert not takes(tokens, whole, value), value


@pytest.mark.parametrize(
    "schema",
    [
        _one_of({"type": "integer"}, {"type": "number"}),
        _one_of("a", "b"),  # {"a": 1, "b": "x"} is valid under both
        _one_of(_OF_A, {**_OF_B, "required": []}),  # and so is {"a": 1} here
        _one_of("a", {**_OF_A, "additionalProperties": False}),
        _one_of("closed", {**_OF_A, "required": ["b"]}),
        _one_of({"const": 1}, {"enum": [1.0, "x"]}),
        _one_of("missing", {"type": "null"}),
        _one_of("circle", {"type": "null"}),
        _one_of("a", True),
        _one_of("a", {"type": 5}),
        {"oneOf": []},
        {"oneOf": {"type": "null"}},
        {**_one_of("a", {"type": "null"}), "anyOf": [5]},
        # As all of these objects may have `c`, `a` or `b` cannot be the only other property.
        {**_one_of(_OF_A, _OF_B), "properties": {"c": {}}},
        {"allOf": [_one_of(_OF_A, _OF_B), {"properties": {"c": {}}}]},
        _one_of("many", {"const": -1}),
    ],
)
def test_one_of_schemas_of_which_several_may_hold_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(GrammarError):
        check_grammar(json_schema_grammar({**schema, "$defs": _DEFS}))


def test_values_to_which_many_schemas_refer_are_read_once_for_each() -> None:
    """Read for each two schemas and each property, they took minutes of a text worker's time for 90 KB."""
    read = []

    class Values(list[str]):
        def __iter__(self) -> Iterator[str]:
            read.append(self)
            return super().__iter__()

    count = 32
    owns = [f"own{each}" for each in range(count)]
    same = {"kind": {"$ref": "#/$defs/kinds"}}
    schemas = [{"type": "object", "properties": {**same, own: {}}, "required": ["kind", own]} for own in owns]
    one_of, defs = _one_of(*schemas), {"kinds": {"enum": Values("abc")}}
    assert "anyOf" in exact_schema({**one_of, "$defs": defs}).value
    assert len(read) <= 3 * count
    read.clear()
    owner = {"properties": {"kind": {"$ref": "#/$defs/kinds"}}, "required": ["kind"], "type": "object"}
    many = {"anyOf": [_one_of("owner", {"type": "null"})] * count, "$defs": {**defs, "owner": owner}}
    assert "oneOf" not in exact_schema(many).text
    assert len(read) < count


def test_the_schemas_that_are_compared_are_limited() -> None:
    each = _one_of(*[{"const": value} for value in range(32)])
    few, many = ({"items": {"anyOf": [each] * count}} for count in (8, 9))  # 8 * 32 * 31 / 2 is less than 4096
    assert "oneOf" not in exact_schema(few).text
    assert "oneOf" in exact_schema(many).text


@pytest.mark.parametrize(
    ("schema", "supported"),
    [
        ({"type": "array", "uniqueItems": False}, True),
        ({"type": "array", "uniqueItems": True, "maxItems": 1}, True),
        ({"type": "string", "uniqueItems": True}, True),
        ({"type": ["array", "null"], "uniqueItems": True}, False),
        ({"uniqueItems": True, "maxItems": 2}, False),
        ({"type": "array", "uniqueItems": 5, "maxItems": 1}, False),
    ],
)
def test_uniqueness_that_forbids_nothing_is_no_error(schema: dict[str, Any], supported: bool) -> None:
    if supported:
        check_grammar(json_schema_grammar({"properties": {"x": schema}}))
    else:
        with pytest.raises(GrammarError, match="uniqueItems"):
            check_grammar(json_schema_grammar({"properties": {"x": schema}}))


LETTERS = {"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": True}
TWO = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("schema", "values"),
    [
        (LETTERS, [[], ["a"], ["b", "a", "c"], ["a", "a"], ["d"], ["a", "b", "c", "a"], "a"]),
        ({**LETTERS, "items": {"enum": ['"' * 60, *"abcd"]}}, [['"' * 60, "a"], ['"' * 60] * 2]),
        ({**LETTERS, "minItems": 2, "maxItems": 2}, [["a"], ["a", "b"], ["b", "b"], ["a", "b", "c"]]),
        ({**LETTERS, "items": {"enum": [*"abcdefghijkl"]}, "maxItems": 2}, [["k", "l"], ["k", "k"], ["a", "b", "c"]]),
        ({**LETTERS, "items": {"$ref": "#/$defs/Color"}}, [["red", "blue"], ["red", "red"], ["a"]]),
        ({"not": {"type": "string"}}, ["a", 1, None, [], {}, 1.5, True]),
        ({"not": {"type": ["number", "null"]}}, ["a", 1, None, 1.5]),
        ({"type": ["integer", "string"], "not": {"type": "integer"}}, ["a", 1]),
        ({"not": {"not": {"type": "string"}}}, [1, "a"]),
        ({"type": "string", "not": {"enum": ["foo", "b", ""]}}, ["foo", "fo", "", "b", "bb", "fooo", "f", 'b"', "z"]),
        ({"type": "string", "not": {"const": "a"}, "pattern": "^[ab]$"}, ["a", "b", "ab"]),
        ({"type": "string", "not": {"enum": ["\n", "^]-", "é"]}}, ["\n", "\t", '"', "\\", "^", "^]-", "]", "é", "e"]),
        (
            {"type": "string", "not": {"enum": ['"', "\\a", 'a"\\']}},
            ['"', "\\", "\n", "\\a", "a", 'a"', 'a"\\', 'a"\n', '""'],
        ),
        ({"type": "string", "not": {"enum": ["\\n", "\\u0061"]}}, ["\\n", "\n", "\\", "n", "\\u0061", "a", '"']),
        ({"type": "string", "not": {"const": 5}}, ["a", 5]),
        (
            {"type": "string", "not": {"enum": ["a" * 64, *(f"{each:040}" for each in range(99))]}},
            ["a" * 63, "a" * 64, f"{98:040}", f"{99:040}"],
        ),
        ({"enum": ["a", "b", None], "not": {"enum": ["a", "x"]}}, ["a", "b", None, "x"]),
        ({**TWO, "not": {"required": ["a", "b"]}}, [{}, {"a": 1}, {"b": 1}, {"a": 1, "b": 1}]),
        ({**TWO, "not": {"required": ["a"]}}, [{}, {"a": 1}, {"b": 1}, {"a": 1, "b": 1}]),
        ({"type": "object", "not": {"required": ["a"]}}, [{}, {"a": 1}, {"b": 1}, {"a": 1, "b": 1}]),
        ({"type": "object", "not": {"required": ["a", "b"]}}, [{}, {"a": 1}, {"b": 1}, {"c": 1}, {"a": 1, "b": 1}]),
        ({"type": "object", "properties": {"a": {"not": {}}, "b": {}}}, [{}, {"a": 1}, {"b": 1}]),
        ({"type": "array", "items": {"not": {"type": "null", "title": "x"}}}, [[], [1], [None]]),
        ({"type": "integer", "not": False}, [1, "a"]),
    ],
)
def test_what_other_keywords_say_as_well_is_enforced(schema: dict[str, Any], values: list[Any]) -> None:
    """llguidance knows neither uniqueItems nor not."""
    tokens = LLTokenizer("byte")
    whole = {"type": "object", "properties": {"x": schema}, "required": ["x"], "additionalProperties": False}
    whole["$defs"] = {"Color": {"type": "string", "enum": ["red", "blue"]}}
    for value in values:
        assert takes(tokens, whole, {"x": value}) == jsonschema.Draft202012Validator(whole).is_valid({"x": value}), (
            value
        )


@pytest.mark.parametrize(
    "schema",
    [
        {**LETTERS, "items": {"enum": [1, 1.0]}},
        {**LETTERS, "items": {"type": "string"}},
        {**LETTERS, "items": {"enum": [*"abcdefgh"]}},
        {**LETTERS, "contains": {"const": "a"}},
        {**LETTERS, "minItems": 4},
        {"type": "array", "items": [{**LETTERS, "items": {"enum": [letter * 99 for letter in "abcde"]}}] * 2},
        {"type": "number", "not": {"type": "integer"}},
        {"type": "string", "not": {"pattern": "a"}},
        {"type": "string", "not": {"const": "a" * 65}},
        {"type": "string", "not": {"enum": [f"{each:060}" for each in range(70)]}},
        {"enum": [1, True], "not": {"const": 1}},
        {"type": "array", "not": {"required": ["a"]}},
        {"type": "object", "not": {"required": ["a", 5]}},
        {"not": {"required": ["a"]}},
        {"not": 5},
    ],
)
def test_what_only_they_say_is_refused_by_name(schema: dict[str, Any]) -> None:
    with pytest.raises(GrammarError, match=r'"(uniqueItems|not)"'):
        check_grammar(json_schema_grammar({"properties": {"x": schema}}))


@pytest.mark.parametrize(
    ("pattern", "allowed", "not_allowed"),
    [
        ('^[^"]*$', ["a", "\\", "a\n\t\r\f\b"], ['a"b']),
        (r"^[^\\]*$", ["a", '"', "\n"], ["\\"]),
        (r'^[^"\n]*$', ["a", "\t"], ['"', "\n"]),
        (r"^\P{P}$", ["a", "\n"], ['"', "\\", "!"]),
        (r"^[\x00-!]$", ["!", "\n"], ['"', "\\", "n"]),
        ("^[^!-/]+$", ["a", "\\"], ['"', "/"]),
        (r"^[^\p{L}]+$", ["1", '"', "\\"], ["a"]),
        (r"^[^\x{65}\u{22}]+$", ["a", "\\"], ["e", '"']),
        (r'^[^"[:digit:]]+$', ["a", "\\"], ["5", '"']),
        ("^[^],]+$", ["a\nb", '"', "\\"], ["]", ","]),
        (r'^\[[^"]\]$', ["[a]", "[\\]"], ['["]']),
    ],
)
def test_a_string_has_no_quotation_mark_and_no_backslash_that_its_pattern_excludes(
    pattern: str, allowed: list[str], not_allowed: list[str]
) -> None:
    tokens = LLTokenizer("byte")
    names = {"type": "object", "patternProperties": {pattern: {"type": "null"}}, "additionalProperties": False}
    for value in [*allowed, *not_allowed]:
        assert takes(tokens, {"type": "string", "pattern": pattern}, value) == (value in allowed)
        assert takes(tokens, names, {value: None}) == (value in allowed)


@pytest.mark.parametrize(
    ("pattern", "allowed", "not_allowed"),
    [
        (r"^(?=.*[A-Z])(?=.*\d)[A-Za-z\d]{4,8}$", ["Ab12", "1234567A"], ["abcd", "ABCD", "ab12", "A1", "Ab12!"]),
        (r"^(?=.{1,3}$)[a-z]+(\.[a-z]+|x)?$", ["a", "a.b", "abc"], ["a.bc", "A"]),
        (r"^(?=[)|]a)(?=(x|\)))\)", [")a", ")ab"], ["|a", ")b"]),
        ("^(?=ab)", ["ab", "abc"], ["a", "xab"]),
        # Negative: user names, slugs, texts that are not blank
        ("^(?!(?:admin|root)$)[a-z]+$", ["adm", "admins", "roo"], ["admin", "root", ""]),
        ("^(?!www|ftp)(?=.*o)[a-z.]+$", ["ww.o", "fto"], ["www.o", "ftpo", "a"]),
        ("^(?!-)(?!.*--)(?!.*-$)[a-z-]+$", ["a", "a-b-c"], ["-a", "a--b", "a-", "-"]),
        (r"^(?!\s*$).+", ["a", " a "], ["", "  "]),
        (r"^(?!\d+$)[\da-z]+$", ["1a", "a"], ["1", "12"]),
        ("^(?![^a-c])(?!.*[^a-z])", ["az", "", "c"], ["z", "a1"]),
        ('^(?!.*")(?!a)', ["b", ""], ['b"', "a"]),
        ("^(?![^^a])", ["^b", "ab", ""], ["b"]),
        # Python's `$` matches before a line feed at the end, too
        ("^(?!admin$)", ["adm", "admin\n1"], ["admin", "admin\n"]),
        (r"^(?!\s*$)(?!a*$)(?!b+$)", ["1", "ab\n"], [" ", "a\n", "b\n"]),
        ("^(?!.*[-x]$)", ["a", "-a"], ["a-", "a-\n", "x", "ax\n"]),
        ("^(?!.*[^a-z-]$)", ["1a", "-"], ["a1", "a1\n"]),
    ],
)
def test_look_ahead_at_the_beginning_of_a_pattern_is_enforced(
    pattern: str, allowed: list[str], not_allowed: list[str]
) -> None:
    """Passwords have such patterns, and Zod's host names."""
    tokens = LLTokenizer("byte")
    whole = {"type": "object", "properties": {"x": {"type": "string", "pattern": pattern}}}
    for value in [*allowed, *not_allowed]:
        assert (re.search(pattern, value) is not None) == (value in allowed) == takes(tokens, whole, {"x": value})
    assert not takes(tokens, whole, {"x": allowed[0], "y": 1}), "the object is closed"


@pytest.mark.parametrize(
    "pattern",
    [
        "^(?=a)b|c",
        "^a(?=b)",
        "(?=a)b",
        "^(?=a",
        "^(?<=a)b",
        "^(?=a(?=b))a",
        "^(?!)a",
        "^(?!a|)b",
        "^(?!a|b$)a",
        "^(?!a+b)a",
        "^(?!a){0}b",
        "^(?=a)(?!b)?",
        "^(?![^])a",
        r"^(?!.*[^\s]$)",
        "^" + "(?=a)(?!b)" * 33,
        "^" + f"(?!{'|'.join(f'{at:02}' * 31 for at in range(60))})" * 10,
    ],
)
def test_other_look_around_is_refused(pattern: str) -> None:
    with pytest.raises(GrammarError, match="regular expression is not valid"):
        check_grammar(json_schema_grammar({"type": "string", "pattern": pattern}))


@pytest.mark.parametrize(
    "short",
    [
        {"format": "date-time"},
        {"type": "number", "minimum": 0, "maximum": 99, "multipleOf": 0.1},
        {"not": {"const": "aaa"}},
    ],
)
def test_what_few_characters_stand_for_is_limited(short: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Schemas of 260 KB became 15 MB, which took a text worker 4 s."""
    schema = {"anyOf": [{"type": "string", **short}] * 20}
    assert len(exact_schema(schema).text) > 2000
    monkeypatch.setattr(growth, "MOST_CHARACTERS", 500)
    with pytest.raises(GrammarError, match="multiples and `not` stand for has more than 500 characters"):
        exact_schema(schema)


def test_what_is_written_anew_in_the_same_length_does_not_count_as_added(monkeypatch: pytest.MonkeyPatch) -> None:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(20):
        schema = {"type": "object", "patternProperties": {"^a": schema}, "additionalProperties": False}
    monkeypatch.setattr(growth, "MOST_CHARACTERS", 0)
    assert json.loads(exact_schema(schema).text) == schema


@pytest.mark.parametrize("pattern", ["[^" * 90, "[^[:a:" * 90, "[a" * 90 + "\\"])
def test_classes_without_an_end_are_read_once(pattern: str) -> None:
    """Read to the pattern's end from each of their beginnings, those of 40 KB took 200 s of a text worker's time."""
    assert [found.span() for found in patterns._CLASS.finditer(pattern)] == [(0, len(pattern))]
    with pytest.raises(GrammarError, match="the regular expression is not valid"):
        check_grammar(json_schema_grammar({"type": "string", "pattern": pattern}))


@pytest.mark.parametrize("texts", [300, 20])
def test_lists_that_are_too_many_are_not_counted(texts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """To count those of 8,000 texts took a text worker 8 s."""
    counted = Mock(wraps=items.perm)
    monkeypatch.setattr(items, "perm", counted)
    schema = {**LETTERS, "items": {"enum": [*map(str, range(texts))]}}
    for each in (schema, {**schema, "minItems": texts}, {**schema, "minItems": 8, "maxItems": 8}):
        assert items.UniqueLists(each).listed(each) is each
    counted.assert_not_called()


_SIZES = {"additionalProperties": {"type": "integer"}}


@pytest.mark.parametrize(
    ("schema", "taken", "refused"),
    [
        ({"propertyNames": {"type": "string", "title": "any"}, **_SIZES}, [{}, {"a": 1, "b": 2}], [{"a": "x"}]),
        ({"propertyNames": True}, [{"a": "x"}], []),
        ({"propertyNames": {"enum": ["a", "b", 5]}, **_SIZES}, [{}, {"a": 1, "b": 2}], [{"c": 1}, {"a": "x"}]),
        ({"propertyNames": {"const": "a"}, "required": ["a"], **_SIZES}, [{"a": 1}], [{}, {"b": 1}]),
        ({"propertyNames": {"enum": ["a", "b"]}, "properties": {"a": {"type": "string"}}, **_SIZES},
         [{"a": "x"}, {"b": 1}], [{"a": 1}, {"b": "x"}, {"c": 1}]),
        ({"propertyNames": {"enum": ["a", "b"]}, "properties": {"a": {}}, "additionalProperties": False},
         [{"a": 1}], [{"b": 1}]),
        ({"propertyNames": {"$ref": "#/$defs/Color"}, "$defs": {"Color": {"type": "string", "enum": ["red"]}}},
         [{"red": [1]}], [{"blue": 1}]),
        ({"propertyNames": {"type": "string", "pattern": "^x"}, **_SIZES}, [{}, {"xy": 1}], [{"y": 1}, {"x": "y"}]),
    ],
)  # fmt: skip
def test_names_of_properties_are_held_to_their_schema(schema: dict[str, Any], taken: Any, refused: Any) -> None:
    """Pydantic's dict[Color, int] and Zod's record have `propertyNames`, which llguidance does not."""
    tokens = LLTokenizer("byte")
    nested = {"$defs": schema.get("$defs", {}), "properties": {"x": {"type": "object", **schema}}, "required": ["x"]}
    for value in taken:
        assert takes(tokens, {"type": "object", **schema}, value) and takes(tokens, nested, {"x": value})
    for value in refused:
        assert not takes(tokens, {"type": "object", **schema}, value)


@pytest.mark.parametrize(
    "others",
    [
        {"propertyNames": False},
        {"propertyNames": {"minLength": "2"}},
        {"propertyNames": {"minLength": 2, "pattern": "a"}},
        {"propertyNames": {"minLength": 2}, "properties": {"a": {}}},
        {"propertyNames": {"format": "hostname"}},
        {"propertyNames": {"enum": ["a"], "pattern": "a"}},
        {"propertyNames": {"enum": "a"}},
        {"propertyNames": {"$ref": "#/$defs/missing"}},
        {"propertyNames": {"$ref": "#/$defs/missing", "maxLength": 1}},
        {"propertyNames": {"enum": ["a"]}, "properties": {"b": {}}},
        {"propertyNames": {"enum": ["a"]}, "properties": 5},
        {"propertyNames": {"enum": ["a"]}, "patternProperties": {"a": {}}},
        {"propertyNames": {"enum": ["a"]}, "additionalProperties": {"enum": ["x" * 100]}},
    ],
)
def test_names_of_properties_that_cannot_be_held_to_their_schema_are_refused(others: dict[str, Any]) -> None:
    with pytest.raises(GrammarError):
        check_grammar(json_schema_grammar({"type": "object", **others}))


def test_repeated_names_do_not_count_as_several_properties() -> None:
    """llguidance took two of the same name for two properties."""
    with pytest.raises(GrammarError, match="minProperties may be at most 1 here"):
        json_schema_grammar({"type": "array", "items": {"type": "object", "minProperties": 2}})
    named = {"properties": {"a": {}}, "required": ["a"], "minProperties": 2}
    for value, taken in ({"a": 1}, False), ({"a": 1, "b": 2}, True):
        assert takes(LLTokenizer("byte"), named, value) == taken
    with pytest.raises(GrammarError, match="minProperties may be at most 2 here"):
        json_schema_grammar({"required": ["a", "a"], "minProperties": 3})
    for one, other in ((named, {"minProperties": 3}), ({"allOf": [{"minProperties": 3}]}, named)):
        with pytest.raises(GrammarError, match="minProperties may be at most 2 here"):
            json_schema_grammar({"allOf": [one, other]})


def test_names_that_other_schemas_of_an_all_of_require_count_too() -> None:
    required = {"properties": {"a": {}, "b": {}}, "required": ["a", "b"]}
    for parts in ([{"minProperties": 2}, required], [{"minProperties": 3}, {"allOf": [required, {}]}]):
        least = parts[0]["minProperties"]
        for value in ({"a": 1}, {"a": 1, "b": 2}, {"a": 1, "b": 2, "c": 3}):
            assert takes(LLTokenizer("byte"), {"allOf": parts}, value) == (len(value) >= least)


def test_a_closed_schema_is_not_refused_for_names_that_it_does_not_allow() -> None:
    closed = {"properties": {"a": {}, "b": {}, "c": {}}, "additionalProperties": False, "minProperties": 2}
    for schema in (closed, {"allOf": [closed, {}]}):
        with pytest.raises(GrammarError, match="only supported when all keys listed"):
            check_grammar(json_schema_grammar(schema))
