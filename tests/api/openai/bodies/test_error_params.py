"""The field that an error names: `param` is its place in what the client sent, also in objects of several kinds."""

from __future__ import annotations

import json
from typing import Any

import pytest

from octavo_engine.server.anthropic.protocol import MessagesBody
from octavo_engine.server.errors import APIError
from octavo_engine.server.openai.bodies.body import parse
from octavo_engine.server.openai.protocol import ChatCompletionBody
from octavo_engine.server.openai.responses.protocol import ResponsesBody

HI = {"role": "user", "content": "Hi"}
NAMED = {"name": "f"}
TEXT = {"type": "text", "text": "x"}
ANY = {"type": "any_text"}
SCHEMA = {"name": "n", "schema": {}}


def tools(*tools: Any) -> dict[str, Any]:
    return {"messages": [HI], "tools": list(tools)}


def custom(format_: Any) -> dict[str, Any]:
    return tools({"type": "custom", "custom": {"name": "f", "format": format_}})


def choice(value: Any) -> dict[str, Any]:
    return {"messages": [HI], "tool_choice": value}


def allowed(*tools: Any) -> dict[str, Any]:
    return choice({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": list(tools)}})


def answer_format(**fields: Any) -> dict[str, Any]:
    return {"messages": [HI], "response_format": fields}


def tag(part: Any) -> dict[str, Any]:
    return answer_format(type="structural_tag", format=part)


def call(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "assistant", "tool_calls": [{"id": "c", **fields}]}]}


def parts(*content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(content)}]}


def asked(**fields: Any) -> dict[str, Any]:
    return {"input": "x", **fields}


def items(*items: Any) -> dict[str, Any]:
    return {"input": list(items)}


def blocks(*content: Any, **fields: Any) -> dict[str, Any]:
    return {"max_tokens": 5, "messages": [{"role": "assistant", "content": list(content)}], **fields}


def result(**fields: Any) -> dict[str, Any]:
    turn = {"role": "user", "content": [{"type": "tool_result", **fields}]}
    return {"max_tokens": 5, "messages": [turn]}


IN_CHATS: list[tuple[dict[str, Any], str]] = [
    (tools({"function": NAMED}), "tools[0].type"),
    (tools({"type": "mcp", "function": NAMED}), "tools[0].type"),
    (tools({"type": 5, "function": NAMED}), "tools[0].type"),
    (tools({"type": None, "function": NAMED}), "tools[0].type"),
    (tools({}), "tools[0].type"),
    (tools(5), "tools[0]"),
    (tools({"type": "function"}), "tools[0].function"),
    (tools({"type": "function", "function": 5}), "tools[0].function"),
    (tools({"type": "function", "function": {"function": {}}}), "tools[0].function.name"),
    (tools({"type": "function", "function": {"name": ""}}), "tools[0].function.name"),
    (tools({"type": "function", "function": {"name": "f", "parameters": 5}}), "tools[0].function.parameters"),
    (tools({"type": "custom"}), "tools[0].custom"),
    (tools({"type": "custom", "function": NAMED, "custom": {}}), "tools[0].custom.name"),
    (custom({}), "tools[0].custom.format.type"),
    (custom({"type": "x"}), "tools[0].custom.format.type"),
    (custom({"type": "grammar"}), "tools[0].custom.format.grammar"),
    (custom({"type": "grammar", "grammar": {}}), "tools[0].custom.format.grammar.syntax"),
    (choice({"type": "function", "function": {}}), "tool_choice.function.name"),
    (choice({"type": "custom", "custom": {"name": 5}}), "tool_choice.custom.name"),
    (choice({"type": "allowed_tools", "allowed_tools": {"mode": "auto"}}), "tool_choice.allowed_tools.tools"),
    (allowed({"function": NAMED}), "tool_choice.allowed_tools.tools[0].type"),
    (allowed({"type": "x"}), "tool_choice.allowed_tools.tools[0].type"),
    (allowed({"type": "function", "function": {}}), "tool_choice.allowed_tools.tools[0].function.name"),
    (answer_format(json_schema=SCHEMA), "response_format.type"),
    (answer_format(format=ANY), "response_format.type"),
    (answer_format(type="xml"), "response_format.type"),
    (answer_format(type="json_schema"), "response_format.json_schema"),
    (answer_format(type="json_schema", json_schema={"json_schema": {}}), "response_format.json_schema.name"),
    (answer_format(type="json_schema", json_schema={"name": "n"}), "response_format.json_schema.schema"),
    (answer_format(type="json_schema", json_schema={**SCHEMA, "x": 1}), "response_format.json_schema.x"),
    (answer_format(type="json_schema", json_schema=SCHEMA, format=1), "response_format.format"),
    (answer_format(type="json_object", json_schema=SCHEMA), "response_format"),
    (answer_format(type="structural_tag", structural_tag=1), "response_format.structural_tag"),
    (answer_format(type="structural_tag"), "response_format"),
    (tag(5), "response_format.format"),
    (tag({}), "response_format.format.type"),
    (tag({"type": "x"}), "response_format.format.type"),
    (tag({"type": "tag", "begin": "a"}), "response_format.format.content"),
    (tag({"type": "tag", "begin": "a", "content": {"type": "regex"}}), "response_format.format.content.pattern"),
    (tag({"type": "tag", "begin": "a", "content": ANY}), "response_format.format.end"),
    (tag({"type": "sequence", "elements": [{"type": "or"}]}), "response_format.format.elements[0].elements"),
    (tag({"type": "json_schema", "json_schema": 5}), "response_format.format.json_schema"),
    (call(function={"arguments": "{}"}), "messages[0].tool_calls[0].function.name"),
    (call(), "messages[0].tool_calls[0].function"),
    (call(type="function"), "messages[0].tool_calls[0].function"),
    (call(type="x", function={"name": "f", "arguments": "{}"}), "messages[0].tool_calls[0].type"),
    (call(type="custom", function=NAMED), "messages[0].tool_calls[0].custom"),
    (call(type="custom", custom=NAMED), "messages[0].tool_calls[0].custom.input"),
    (parts(5), "messages[0].content[0]"),
    (parts({"text": "x"}), "messages[0].content[0].type"),
    (parts(TEXT, {"type": "x"}), "messages[0].content[1].type"),
    (parts(TEXT, {"type": "text"}), "messages[0].content[1].text"),
    (parts(TEXT, {"type": "refusal", "text": "x"}), "messages[0].content[1].refusal"),
    (parts(TEXT, {"type": "image_url", "image_url": {}}), "messages[0].content[1].type"),
    (parts(), "messages[0].content"),
    ({"messages": [{"type": "content", "role": "user", "content": 5}]}, "messages[0].content"),
]
IN_RESPONSES: list[tuple[dict[str, Any], str]] = [
    (asked(tool_choice=5), "tool_choice"),
    (asked(tool_choice="any"), "tool_choice"),
    (asked(tool_choice=NAMED), "tool_choice.type"),
    (asked(tool_choice={"type": "x"}), "tool_choice.type"),
    (asked(tool_choice={"type": "function"}), "tool_choice.name"),
    (asked(tool_choice={"type": "allowed_tools", "mode": "auto"}), "tool_choice.tools"),
    (asked(tool_choice={"type": "allowed_tools", "mode": "x", "tools": []}), "tool_choice.mode"),
    (asked(tool_choice={"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function"}]}),
     "tool_choice.tools[0].name"),
    (asked(tools=[NAMED]), "tools[0].type"),
    (asked(tools=[{"type": "function", "name": "f"}, {"type": "web_search"}]), "tools[1].type"),
    (asked(tools=[{"type": "function"}]), "tools[0].name"),
    (asked(tools=[{"type": "custom", "name": "f", "format": {"type": "grammar"}}]), "tools[0].format.syntax"),
    (asked(text={"format": {}}), "text.format.type"),
    (asked(text={"format": {"type": "json_schema", "schema": {}}}), "text.format.name"),
    (asked(text={"format": {"type": "text", "x": 1}}), "text.format.x"),
    (items(HI, {"type": "x"}), "input[1].type"),
    (items({"role": "user", "content": [{"type": "input_image"}]}), "input[0].content[0].type"),
    (items({"role": "user", "content": [{"type": "input_text"}]}), "input[0].content[0].text"),
    (items({"role": "user", "message": {}}), "input[0].content"),
    (items({"type": "message", "content": "x"}), "input[0].role"),
    (items({"type": "function_call", "call_id": "c", "name": "f"}), "input[0].arguments"),
    (items({"type": "reasoning", "content": [{"type": "reasoning_text"}]}), "input[0].content[0].text"),
    (items({"content": "x"}), "input[0].type"),
    (items(5), "input[0]"),
]  # fmt: skip
IN_MESSAGES: list[tuple[dict[str, Any], str]] = [
    (blocks({"type": "text"}), "messages[0].content[0].text"),
    (blocks({"type": "text", "text": 5}), "messages[0].content[0].text"),
    (blocks({"type": "text", "text": {"text": "x"}}), "messages[0].content[0].text"),
    (blocks(TEXT, {"text": "x"}), "messages[0].content[1].type"),
    (blocks(TEXT, {"type": "image"}), "messages[0].content[1].type"),
    (blocks({"type": "thinking", "thinking": 5}), "messages[0].content[0].thinking"),
    (blocks({"type": "tool_use", "id": "i", "name": "f"}), "messages[0].content[0].input"),
    (blocks({"type": "tool_use", "tool_use": {}, "id": "i", "input": {}}), "messages[0].content[0].name"),
    (result(content="x"), "messages[0].content[0].tool_use_id"),
    (result(tool_use_id="i", content=[{"type": "text"}]), "messages[0].content[0].content[0].text"),
    (result(tool_use_id="i", content=[{"type": "image"}]), "messages[0].content[0].content[0].type"),
    (blocks(TEXT, system=[{"type": "text"}]), "system[0].text"),
    (blocks(TEXT, system=[{"type": "image"}]), "system[0].type"),
    (blocks(TEXT, tools=[{"type": "bash_20250124", "name": "bash"}]), "tools[0].type"),
    (blocks(TEXT, tools=[NAMED]), "tools[0].input_schema"),
    (blocks(TEXT, tool_choice={}), "tool_choice.type"),
    (blocks(TEXT, tool_choice={"type": "tool"}), "tool_choice.name"),
    (blocks(TEXT, tool_choice={"type": "any", "name": "f"}), "tool_choice.name"),
    (blocks(TEXT, output_config={"format": {"type": "json_schema"}}), "output_config.format.schema"),
]
CASES = [
    (kind, body, param)
    for kind, cases in ((ChatCompletionBody, IN_CHATS), (ResponsesBody, IN_RESPONSES), (MessagesBody, IN_MESSAGES))
    for body, param in cases
]


@pytest.mark.parametrize(("kind", "body", "param"), CASES)
def test_param_is_the_place_of_what_is_wrong(kind: type[Any], body: dict[str, Any], param: str) -> None:
    with pytest.raises(APIError) as caught:
        parse(kind, json.dumps(body).encode())
    assert (caught.value.status, caught.value.detail.param) == (400, param)
    assert caught.value.detail.message.startswith(param)
