"""The fields for structured output, OpenAI's and vLLM's: each becomes one grammar, or a 400 with a clear message."""

from __future__ import annotations

import json
from typing import Any

import pytest

from octavo_engine.structured.grammar import (
    choice_grammar,
    json_object_grammar,
    json_schema_grammar,
    lark_grammar,
    regex_grammar,
)
from octavo_engine.structured.structural_tags import structural_tag_grammar
from tests.api.served import Served

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
LARK = 'start: "a" | "b"'
TAG = {"begin": "<f>", "content": {"type": "json_schema", "json_schema": SCHEMA}, "end": "</f>"}
FORM: dict[str, Any] = {
    "type": "triggered_tags",
    "triggers": ["<"],
    "tags": [TAG],
    "at_least_one": False,
    "stop_after_first": False,
}
OLDER = {"structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}], "triggers": ["<"]}
PATHS = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
    "/v1/completions": {"prompt": "Hi"},
}
ASKED: list[tuple[dict[str, Any], str]] = [
    ({"response_format": {"type": "json_object"}}, json_object_grammar()),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}},
        json_schema_grammar(SCHEMA),
    ),
    ({"guided_json": SCHEMA}, json_schema_grammar(SCHEMA)),
    ({"guided_json": '{"type": "integer"}'}, json_schema_grammar('{"type": "integer"}')),
    ({"guided_regex": "[a-c]+"}, regex_grammar("[a-c]+")),
    ({"guided_choice": ["yes", "no"]}, choice_grammar(["yes", "no"])),
    ({"guided_grammar": LARK}, lark_grammar(LARK)),
    ({"structured_outputs": {"json": SCHEMA}}, json_schema_grammar(SCHEMA)),
    ({"structured_outputs": {"json": SCHEMA, "disable_fallback": True}}, json_schema_grammar(SCHEMA)),
    (
        {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}},
        json_schema_grammar(SCHEMA, compact=True),
    ),
    (
        {"structured_outputs": {"json_object": True, "disable_any_whitespace": True}},
        json_object_grammar(compact=True),
    ),
    ({"structured_outputs": {"regex": "[a-c]+"}}, regex_grammar("[a-c]+")),
    ({"structured_outputs": {"choice": ["yes", "no"]}}, choice_grammar(["yes", "no"])),
    ({"structured_outputs": {"grammar": LARK}}, lark_grammar(LARK)),
    ({"structured_outputs": {"json_object": True}}, json_object_grammar()),
    ({"response_format": {"type": "structural_tag", **OLDER}}, structural_tag_grammar(FORM)),
    ({"response_format": {"type": "structural_tag", "format": FORM}}, structural_tag_grammar(FORM)),
    ({"structured_outputs": {"structural_tag": json.dumps(OLDER)}}, structural_tag_grammar(FORM)),
    # null means absent, for fields of other servers too
    ({"response_format": {"type": "json_object", "schema": None}}, json_object_grammar()),
    (
        {"response_format": {"type": "structural_tag", "format": {**FORM, "excludes": None}}},
        structural_tag_grammar(FORM),
    ),
]
FREE: list[dict[str, Any]] = [
    {"response_format": {"type": "text"}},
    {"structured_outputs": {"json_object": False}},
    {"guided_json": None, "response_format": None},
]


BROKEN = {"type": "json_schema", "json_schema": {"type": "cheese"}}


def nested(levels: int) -> dict[str, Any]:
    form: dict[str, Any] = {"type": "any_text"}
    for _ in range(levels):
        form = {"type": "sequence", "elements": [form]}
    return form


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "no form at all": ({"structured_outputs": {}}, "structured_outputs", "names no form: give one of json"),
    "an option of no form": (
        {"structured_outputs": {"disable_any_whitespace": True, "json": None}},
        "structured_outputs",
        "names no form",
    ),
    "a part that is not supported": (
        {"response_format": {"type": "structural_tag", "format": {"type": "qwen_xml_parameter", "json_schema": {}}}},
        "response_format.format.type",
        "qwen_xml_parameter is not supported",
    ),
    "both forms of a tag": (
        {"response_format": {"type": "structural_tag", "format": FORM, **OLDER}},
        "response_format",
        "either a format, or structures and triggers",
    ),
    "a trigger without a tag": (
        {"response_format": {"type": "structural_tag", "structures": OLDER["structures"], "triggers": ["<", "x"]}},
        "response_format",
        "no tag begins with the trigger 'x'",
    ),
    "too many triggers": (
        {"response_format": {"type": "structural_tag", **OLDER, "triggers": [f"<{index}" for index in range(65)]}},
        "response_format.triggers",
        "at most 64",
    ),
    "a trigger twice": (
        {"response_format": {"type": "structural_tag", **OLDER, "triggers": ["<", "<"]}},
        "response_format",
        "the trigger '<' is given twice",
    ),
    "a tag whose schema is wrong": (
        {"response_format": {"type": "structural_tag", "format": {**TAG, "type": "tag", "content": BROKEN}}},
        "response_format",
        "cheese",
    ),
    "tags that are nested too deeply": (
        {"response_format": {"type": "structural_tag", "format": nested(9)}},
        "response_format.format",
        "more than 8 parts",
    ),
    "two at once": (
        {"guided_regex": "a", "response_format": {"type": "json_object"}},
        "response_format",
        "response_format, guided_regex: only one",
    ),
    "two in one": ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs.regex", "only one"),
    "an unknown type": (
        {"response_format": {"type": "xml"}},
        "response_format.type",
        "must be one of 'text', 'json_object', 'json_schema', 'structural_tag'",
    ),
    "no name": (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
        "response_format.json_schema.name",
        "is required",
    ),
    "no schema": (
        {"response_format": {"type": "json_schema"}},
        "response_format.json_schema",
        "is required if type is json_schema",
    ),
    "a schema of another type": (
        {"response_format": {"type": "json_object", "json_schema": {"name": "a", "schema": {}}}},
        "response_format",
        "json_object has no json_schema",
    ),
    "no object": ({"guided_json": [1]}, "guided_json", "must be a JSON schema"),
    "a schema with a wrong type": ({"guided_json": {"type": "cheese"}}, "guided_json", "cheese"),
    "a schema that is too deep": ({"guided_json": deep(70)}, "guided_json", "nested more than 64"),
    "a wrong regex": ({"guided_regex": "(a"}, "guided_regex", "regex"),
    "no choice": ({"guided_choice": []}, "guided_choice", "at least 1"),
    "too many choices": ({"guided_choice": ["a"] * 2000}, "guided_choice", "at most 1024"),
    "a wrong grammar": ({"guided_grammar": "start: missing"}, "guided_grammar", "missing"),
    "an unknown form": ({"structured_outputs": {"xml": "a"}}, "structured_outputs.xml", "unknown field"),
    "no end": ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos", "leave ignore_eos out"),
    "a least length": ({"guided_regex": "a", "min_tokens": 3}, "min_tokens", "leave min_tokens out"),
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("fields", "grammar"), ASKED)
def test_each_way_to_ask_is_one_grammar(server: Served, path: str, fields: dict[str, Any], grammar: str) -> None:
    assert server.http.post(path, json={**PATHS[path], **fields, "n": 2}).status_code == 200
    assert [request.sampling.grammar for request in server.engine.requests] == [grammar] * 2


@pytest.mark.parametrize("fields", FREE)
def test_what_asks_for_nothing_leaves_the_answer_free(server: Served, fields: dict[str, Any]) -> None:
    path = "/v1/chat/completions"
    assert server.http.post(path, json={**PATHS[path], **fields}).status_code == 200
    assert server.engine.requests[0].sampling.grammar is None


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named(server: Served, name: str) -> None:
    fields, param, says = WRONG[name]
    answer = server.http.post("/v1/chat/completions", json={**PATHS["/v1/chat/completions"], **fields})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert says in error["message"]
    assert server.engine.requests == []
