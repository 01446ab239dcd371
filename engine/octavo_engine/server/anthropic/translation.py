"""Translates a request of the Messages API to the body of a chat completion, field by field."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from octavo_engine.server.anthropic.protocol import (
    MessagesBody,
    PromptBody,
    TextBlock,
    ThinkingBlock,
    ToolChoice,
    ToolResultBlock,
    ToolUseBlock,
    Turn,
)
from octavo_engine.server.openai.bodies.body import checked
from octavo_engine.server.openai.protocol import ChatCompletionBody

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def chat_body(body: PromptBody) -> ChatCompletionBody:
    """Return the body of the same request as a chat completion; APIError 400 if it is not valid."""
    fields = {"model": body.model, "messages": list(_messages(body)), **_tools(body), **_thinking(body)}
    if (last := body.messages[-1]).role == "assistant" and not _has_calls(last):
        fields |= {"continue_final_message": True, "add_generation_prompt": False}
    if (output := body.output_config) is not None and output.format is not None:
        schema = {"name": "output", "schema": output.format.schema_}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    if isinstance(body, MessagesBody):
        fields |= body.given_sampling()
        fields |= {"max_tokens": body.max_tokens, "stream": body.stream}
    chat = checked(ChatCompletionBody, fields)
    if isinstance(body, MessagesBody) and body.stop_sequences:  # they have been checked, and may be more than `stop`
        chat.stop = body.stop_sequences
    return chat


def _messages(body: PromptBody) -> Iterator[dict[str, Any]]:
    if body.system:
        yield {"role": "system", "content": _text(body.system)}
    for turn in body.messages:
        yield from _assistant(turn) if turn.role == "assistant" else _others(turn)


def _others(turn: Turn) -> Iterator[dict[str, Any]]:
    """Yield the messages of a turn that is not the assistant's. Each result of a tool is a message of its own."""
    texts: list[TextBlock] = []
    for block in turn.content:
        if isinstance(block, TextBlock):
            texts.append(block)
        elif isinstance(block, ToolResultBlock):
            if texts:
                yield {"role": turn.role, "content": _text(texts)}
                texts = []
            yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": _result(block)}
    if texts or not turn.content:
        yield {"role": turn.role, "content": _text(texts)}


def _assistant(turn: Turn) -> Iterator[dict[str, Any]]:
    calls = [_call(block) for block in turn.content if isinstance(block, ToolUseBlock)]
    thoughts = [block.thinking for block in turn.content if isinstance(block, ThinkingBlock)]
    yield {
        "role": "assistant",
        "content": "".join(block.text for block in turn.content if isinstance(block, TextBlock)),
        "reasoning_content": "".join(thoughts) or None,
        "tool_calls": calls or None,
    }


def _call(block: ToolUseBlock) -> dict[str, Any]:
    arguments = json.dumps(block.input, ensure_ascii=False)
    return {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": arguments}}


def _has_calls(turn: Turn) -> bool:
    return any(isinstance(block, ToolUseBlock) for block in turn.content)


def _result(block: ToolResultBlock) -> str:
    """Return a tool's result as text. An error is marked in the text, as chat templates have no other way to say it."""
    text = _text(block.content or ())
    return f"Error: {text}" if block.is_error else text


def _text(blocks: Sequence[TextBlock]) -> str:
    return "\n".join(block.text for block in blocks)


def _tools(body: PromptBody) -> dict[str, Any]:
    tools = [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.input_schema,
                "strict": tool.strict,
            },
        }
        for tool in body.tools or ()
    ]
    choice = body.tool_choice
    parallel = False if choice is not None and choice.disable_parallel_tool_use else None
    return {"tools": tools, "tool_choice": _choice(choice), "parallel_tool_calls": parallel}


def _choice(choice: ToolChoice | None) -> Any:
    if choice is None:
        return None
    if choice.name is not None:
        return {"type": "function", "function": {"name": choice.name}}
    return _CHOICES[choice.type]


def _thinking(body: PromptBody) -> dict[str, Any]:
    """Return the variables that chat templates read: whether to think, with which effort, and those of the request.

    An effort does not by itself ask the model to think, as OpenAI's reasoning_effort does.
    """
    variables: dict[str, Any] = {}
    if body.thinking is not None:
        variables["enable_thinking"] = body.thinking.type != "disabled"
    if body.output_config is not None and (effort := body.output_config.effort) is not None:
        variables["reasoning_effort"] = effort
    return {"chat_template_kwargs": {**variables, **(body.chat_template_kwargs or {})} or None}
