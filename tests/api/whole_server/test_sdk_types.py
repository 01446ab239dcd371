"""Responses have the types of the SDKs, which are checked strictly here, since the SDKs themselves accept any value."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anthropic
import pytest
from openai import OpenAI

from tests.api.served import PATIENCE, Served

HI: Any = [{"role": "user", "content": "Hi"}]
WEATHER: dict[str, Any] = {
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
TOOLS: Any = [{"type": "function", "function": WEATHER}]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'


@pytest.fixture
def strict(server: Served) -> OpenAI:
    return server.openai(_strict_response_validation=True)


def test_answers(strict: OpenAI) -> None:
    strict.chat.completions.create(model="smollm2", messages=HI, logprobs=True, top_logprobs=2, n=2)
    strict.completions.create(model="smollm2", prompt=["Hi", "Ho"], logprobs=2, n=2)
    strict.embeddings.create(model="smollm2", input=["Hi", "Ho"], encoding_format="float")
    strict.responses.input_tokens.count(model="smollm2", input="Hi")
    assert strict.models.retrieve("smollm2") in list(strict.models.list())


def test_streams(strict: OpenAI) -> None:
    usage: Any = {"include_usage": True}
    chunks = list(
        strict.chat.completions.create(
            model="smollm2", messages=HI, logprobs=True, top_logprobs=2, stream=True, stream_options=usage
        )
    )
    assert chunks[-1].usage is not None
    with strict.chat.completions.stream(model="smollm2", messages=HI) as events:
        assert events.get_final_completion().choices[0].message.content == "Hello there."
    with strict.responses.stream(model="smollm2", input="Hi") as events:
        assert events.get_final_response().output_text == "Hello there."


def test_calls_of_tools(server: Served, strict: OpenAI) -> None:
    server.play(CALL)
    asked: Any = {"model": "smollm2", "messages": HI, "tools": TOOLS, "tool_choice": "required"}
    strict.chat.completions.create(**asked)
    with strict.chat.completions.stream(**asked) as events:
        [call] = events.get_final_completion().choices[0].message.tool_calls or []
    assert call.function.arguments == '{"city": "Rome"}'
    asked = {"model": "smollm2", "input": "Hi", "tools": [{"type": "function", "strict": None, **WEATHER}]}
    strict.responses.create(**asked, tool_choice="required")
    with strict.responses.stream(**asked, tool_choice="required") as events:
        assert [item.type for item in events.get_final_response().output] == ["function_call"]


def test_files_and_batches(start: Callable[..., Served], tmp_path: Path) -> None:
    server = start(batch_storage=tmp_path)
    strict = server.openai(_strict_response_validation=True)
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "Hi"}}
    file = strict.files.create(file=("in.jsonl", json.dumps(line).encode()), purpose="batch")
    asked = strict.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
    server.wait_until(lambda: strict.batches.retrieve(asked.id).status == "completed")
    assert len(list(strict.batches.list())) == 1 and len(list(strict.files.list())) == 2
    strict.files.delete(strict.files.retrieve(file.id).id)


def test_messages(server: Served) -> None:
    strict = anthropic.Anthropic(
        base_url=server.url, api_key="none", max_retries=0, timeout=PATIENCE, _strict_response_validation=True
    )
    strict.messages.create(model="smollm2", max_tokens=5, messages=HI)
    strict.messages.count_tokens(model="smollm2", messages=HI)
    with strict.messages.stream(model="smollm2", max_tokens=5, messages=HI) as events:
        assert events.get_final_message().stop_reason == "end_turn"
    server.play(CALL)
    tool: Any = {"name": "weather", "input_schema": WEATHER["parameters"]}
    with strict.messages.stream(
        model="smollm2", max_tokens=50, messages=HI, tools=[tool], tool_choice={"type": "any"}
    ) as events:
        assert events.get_final_message().stop_reason == "tool_use"
    edits = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}  # as Claude Code asks
    strict.messages.create(model="smollm2", max_tokens=5, messages=HI, extra_body={"context_management": edits})
    assert strict.models.retrieve("smollm2") in list(strict.models.list())
    with pytest.raises(anthropic.NotFoundError) as caught:
        strict.models.retrieve("another")
    assert caught.value.body["type"] == "error" and caught.value.request_id  # type: ignore[index, call-overload]
    runner = strict.beta.messages.tool_runner(
        model="smollm2", max_tokens=50, messages=HI, tools=[weather], max_iterations=2
    )  # it asks the server to keep the conversation, and must learn that there are only whole ones here
    assert [message.stop_reason for message in runner] == ["tool_use", "tool_use"]
    assert "18 degrees" in server.tokenizer.decode(server.engine.requests[-1].prompt_token_ids)


@anthropic.beta_tool
def weather(city: str) -> str:
    """Return the weather in a city."""
    return f"18 degrees in {city}"
