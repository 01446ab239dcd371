"""Tools for models whose chat template knows none: they are described in a system message, in Hermes' words and format.

https://huggingface.co/NousResearch/Hermes-2-Pro-Llama-3-8B describes the format.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

_INTRODUCTION = """You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


def with_tools(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages with the tools described in the first, and with calls and their results as text."""
    found = [_as_text(message) for message in messages]
    if not tools:
        return found
    text = _INTRODUCTION.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    if found and found[0]["role"] == "system":
        return [{**found[0], "content": f"{found[0]['content']}\n\n{text}"}, *found[1:]]
    return [{"role": "system", "content": text}, *found]


def _as_text(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message without fields that only templates with tools know."""
    content, calls = message["content"], message.get("tool_calls") or ()
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{content}\n</tool_response>"}
    parts = [
        content,
        *(f"<tool_call>\n{json.dumps(call['function'], ensure_ascii=False)}\n</tool_call>" for call in calls),
    ]
    kept = {name: value for name, value in message.items() if name in ("role", "name")}
    return {**kept, "content": "\n".join(part for part in parts if part)}
