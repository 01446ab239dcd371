"""Translates a request of the Responses API to the body of a chat completion, and to the fields its answer repeats."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from octavo_engine.server.openai.bodies.body import checked
from octavo_engine.server.openai.protocol import ChatCompletionBody
from octavo_engine.server.openai.responses.protocol import (
    AllowedTools,
    CustomTool,
    CustomToolCallItem,
    FunctionCallItem,
    FunctionCallOutputItem,
    FunctionTool,
    GrammarInput,
    Item,
    MessageItem,
    NamedTool,
    ReasoningItem,
    ResponsesBody,
    SchemaFormat,
)
from octavo_engine.server.preparation.prepared import PreparedRequest

_LOGPROBS = "message.output_text.logprobs"


def chat_body(body: ResponsesBody) -> ChatCompletionBody:
    """Return the body of the same request as a chat completion; APIError 400 if it is not valid."""
    instructions = [] if body.instructions is None else [{"role": "system", "content": body.instructions}]
    logprobs = bool(body.top_logprobs) or _LOGPROBS in (body.include or ())
    return checked(
        ChatCompletionBody,
        body.given_sampling()
        | {
            "model": body.model,
            "messages": [*instructions, *_messages(body.input)],
            "stream": body.stream,
            "max_completion_tokens": body.max_output_tokens,
            "response_format": _response_format(body),
            "reasoning_effort": body.reasoning.effort if body.reasoning is not None else None,
            "tools": [_tool(tool) for tool in body.tools or ()],
            "tool_choice": _choice(body),
            "parallel_tool_calls": body.parallel_tool_calls,
            "logprobs": logprobs,
            "top_logprobs": body.top_logprobs if logprobs else None,
            "structured_outputs": body.structured_outputs,
            "chat_template_kwargs": body.chat_template_kwargs,
            "skip_special_tokens": body.skip_special_tokens,
        },
    )


def _messages(items: Sequence[Item]) -> list[dict[str, Any]]:
    """Return the messages of items. The reasoning, text and calls of one answer are several items, but one message."""
    messages: list[dict[str, Any]] = []
    answer: dict[str, Any] | None = None
    for item in items:
        if isinstance(item, FunctionCallOutputItem) or (isinstance(item, MessageItem) and item.role != "assistant"):
            answer = None
            messages.append(_other(item))
            continue
        if answer is None or isinstance(item, ReasoningItem) or (isinstance(item, MessageItem) and answer["content"]):
            answer = {"role": "assistant", "content": None}
            messages.append(answer)
        _add(answer, item)
    return [message for message in messages if len(message) > 2 or message["content"] is not None]


def _other(item: MessageItem | FunctionCallOutputItem) -> dict[str, Any]:
    if isinstance(item, MessageItem):
        return {"role": item.role, "content": item.content}
    return {"role": "tool", "tool_call_id": item.call_id, "content": item.output}


def _add(answer: dict[str, Any], item: MessageItem | FunctionCallItem | CustomToolCallItem | ReasoningItem) -> None:
    """Add the content of an item to the message of the answer to which it belongs."""
    if isinstance(item, MessageItem):
        answer["content"] = item.content
    elif isinstance(item, ReasoningItem):
        if text := "".join(part.text for part in item.content or ()):
            answer["reasoning_content"] = text
    elif isinstance(item, CustomToolCallItem):
        custom = {"name": item.name, "input": item.input}
        answer.setdefault("tool_calls", []).append({"id": item.call_id, "type": "custom", "custom": custom})
    else:
        function = {"name": item.name, "arguments": item.arguments}
        answer.setdefault("tool_calls", []).append({"id": item.call_id, "type": "function", "function": function})


def _tool(tool: FunctionTool | CustomTool) -> dict[str, Any]:
    fields = tool.model_dump(exclude={"type"})
    if isinstance(tool, CustomTool) and isinstance(tool.format, GrammarInput):
        fields["format"] = {"type": "grammar", "grammar": tool.format.model_dump(exclude={"type"})}
    return {"type": tool.type, tool.type: fields}


def _choice(body: ResponsesBody) -> Any:
    if isinstance(body.tool_choice, NamedTool):
        return _named(body.tool_choice)
    if isinstance(body.tool_choice, AllowedTools):
        allowed = {"mode": body.tool_choice.mode, "tools": [_named(tool) for tool in body.tool_choice.tools]}
        return {"type": "allowed_tools", "allowed_tools": allowed}
    return body.tool_choice


def _named(tool: NamedTool) -> dict[str, Any]:
    return {"type": tool.type, tool.type: {"name": tool.name}}


def _response_format(body: ResponsesBody) -> dict[str, Any] | None:
    form = body.text.format if body.text is not None else None
    if form is None:
        return None
    if isinstance(form, SchemaFormat):
        return {"type": form.type, "json_schema": form.model_dump(by_alias=True, exclude={"type"})}
    return {"type": form.type}


def repeated_fields(body: ResponsesBody, prepared: PreparedRequest) -> bytes:
    """Return as a JSON object the request's fields that the answer repeats, with defaults where they were absent."""
    text = body.text.model_dump(by_alias=True, exclude_none=True) if body.text is not None else {}
    reasoning = body.reasoning
    choice = body.tool_choice
    fields = {
        "background": False,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": None,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": reasoning.effort if reasoning is not None else None, "summary": None},
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": False,
        "temperature": prepared.sampling.temperature,
        "text": {"format": {"type": "text"}} | text,
        "tool_choice": choice.model_dump() if isinstance(choice, NamedTool | AllowedTools) else choice or "auto",
        "tools": [tool.model_dump() for tool in body.tools or ()],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": prepared.sampling.top_p,
        "truncation": "disabled",
        "user": body.user,
    }
    return json.dumps(fields, separators=(",", ":")).encode()
