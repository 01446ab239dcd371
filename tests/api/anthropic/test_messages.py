"""Anthropic's Messages API, through the real `anthropic` SDK."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anthropic
import msgspec
import pytest

from octavo_engine.output_parsing.answer_form import AnswerForm
from octavo_engine.output_parsing.formats.hermes import HERMES
from octavo_engine.output_parsing.formats.tool import Tool
from octavo_engine.server.anthropic import prepare_messages
from octavo_engine.server.anthropic.messages import MessageWriter
from octavo_engine.server.errors import APIError
from octavo_engine.server.generation.sequence import SequenceOutput
from octavo_engine.server.generation.usage import PromptTokensDetails, Usage
from octavo_engine.server.preparation.loaded_model import LoadedModel
from octavo_engine.structured.grammar import json_schema_grammar
from octavo_engine.structured.structural_tags import structural_tag_grammar
from octavo_engine.text.chat_template import ChatTemplate
from octavo_engine.text.tokenizer import Tokenizer
from tests.api.scripted_engine import READY
from tests.api.served import PATIENCE, Served, write_keys

ASK: list[Any] = [{"role": "user", "content": "Will it rain in Paris?"}]
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER: Any = {"name": "weather", "description": "The weather of a city.", "input_schema": SCHEMA}
CALL = 'Let me see.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
PATH = "/v1/messages"


def sdk(server: Served, **options: Any) -> anthropic.Anthropic:
    return anthropic.Anthropic(
        base_url=server.url, **{"api_key": "none", "max_retries": 0, "timeout": PATIENCE, **options}
    )


def ask(server: Served, **options: Any) -> Any:
    given: dict[str, Any] = {"model": "smollm2", "max_tokens": 100, "messages": ASK, **options}
    return sdk(server).messages.create(**given)


def stream(server: Served, **options: Any) -> tuple[list[Any], Any]:
    """The raw events, and the message that the SDK puts together of the same answer."""
    given: dict[str, Any] = {"model": "smollm2", "max_tokens": 100, "messages": ASK, **options}
    events = list(sdk(server).messages.create(stream=True, **given))
    with sdk(server).messages.stream(**given) as stream:
        return events, stream.get_final_message()


def prompt_of(server: Served) -> str:
    return server.tokenizer.decode(server.engine.requests[-1].prompt_token_ids, skip_special_tokens=False)


def test_a_message(server: Served) -> None:
    fields: dict[str, Any] = {"metadata": {"user_id": "me"}, "speed": "standard"}
    message = ask(server, system="Be brief.", **fields, extra_body={"temperature": 0.5, "top_k": 7})
    assert [block.to_dict() for block in message.content] == [{"type": "text", "text": "Hello there."}]
    assert (message.role, message.type, message.model) == ("assistant", "message", "smollm2")
    assert (message.stop_reason, message.stop_sequence, message._request_id is not None) == ("end_turn", None, True)
    request = server.engine.requests[-1]
    assert (request.sampling.temperature, request.sampling.top_k, request.sampling.max_tokens) == (0.5, 7, 100)
    assert "<|im_start|>system\nBe brief.<|im_end|>" in prompt_of(server)
    usage = message.usage
    assert usage.input_tokens + usage.cache_read_input_tokens == len(request.prompt_token_ids)
    assert (usage.cache_read_input_tokens, usage.output_tokens) == (16, 4)  # the end counts, as for a chat


def test_the_events_of_a_stream(server: Served) -> None:
    events, message = stream(server)
    kinds = [event.type for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta"} and len(kinds) > 6
    assert (events[0].message.content, events[0].message.stop_reason) == ([], None)
    assert (events[-2].delta.stop_reason, events[-2].usage.output_tokens) == ("end_turn", 4)
    assert "".join(event.delta.text for event in events[2:-3]) == message.content[0].text == "Hello there."
    assert message.usage.cache_read_input_tokens == 16


def test_how_a_message_ends(server: Served) -> None:
    assert ask(server, max_tokens=2).stop_reason == "max_tokens"
    stops = ["a", "b", "c", "d", "f", " there"]
    for message in (ask(server, stop_sequences=stops), stream(server, stop_sequences=stops)[1]):
        assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", " there")
        assert message.content[0].text == "Hello"


def test_a_call_of_a_tool(server: Served) -> None:
    server.play(CALL)
    message = ask(server, tools=[WEATHER])
    text, call = message.content
    assert (text.text, call.type, call.name, call.input) == ("Let me see.", "tool_use", "weather", {"city": "Paris"})
    assert message.stop_reason == "tool_use"
    events, streamed = stream(server, tools=[WEATHER])
    pieces = [event.delta.partial_json for event in events if getattr(event, "delta", None) and event.type ==
              "content_block_delta" and event.delta.type == "input_json_delta"]  # fmt: skip
    assert "".join(pieces) == '{"city": "Paris"}' and len(pieces) > 2
    assert [block.type for block in streamed.content] == ["text", "tool_use"]
    assert (streamed.content[1].input, streamed.stop_reason) == ({"city": "Paris"}, "tool_use")
    starts = [event for event in events if event.type == "content_block_start"]
    assert [event.index for event in starts] == [0, 1]
    assert starts[1].content_block.input == {}
    for each in (call, starts[1].content_block, streamed.content[1]):
        assert each.id.startswith("toolu_") and len(each.id) == len("toolu_") + 24


def test_arguments_that_are_no_json_of_utf_8_are_passed_on_as_text(server: Served) -> None:
    for arguments in (r'{"city": "\ud800"}', '{"city": NaN}'):
        server.play(f'<tool_call>{{"name": "weather", "arguments": {arguments}}}</tool_call>')
        assert ask(server, tools=[WEATHER]).content[0].input == {"arguments": arguments}


@pytest.mark.parametrize(
    ("choice", "several"),
    [({"type": "any"}, True), ({"type": "any", "disable_parallel_tool_use": True}, False),
     ({"type": "tool", "name": "weather"}, False)],
)  # fmt: skip
def test_a_demanded_call_is_held_to_its_schema(server: Served, choice: Any, several: bool) -> None:
    server.play('<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>')
    message = ask(server, tools=[WEATHER], tool_choice=choice)
    assert (message.content[0].input, message.stop_reason) == ({"city": "Rome"}, "tool_use")
    form = HERMES.calls([Tool("weather", SCHEMA)], "", several=several)
    assert server.engine.requests[-1].sampling.grammar == structural_tag_grammar(form)


def test_no_calls_unless_allowed(server: Served) -> None:
    server.play(CALL)
    message = ask(server, tools=[WEATHER], tool_choice={"type": "none"})
    assert [block.type for block in message.content] == ["text"]


def test_results_of_tools_go_back_to_the_model(server: Served) -> None:
    server.play(CALL)
    first = ask(server, tools=[WEATHER])
    call = first.content[1]
    results = [
        {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "No."}]},
        {"type": "tool_result", "tool_use_id": call.id, "content": "broken", "is_error": True},
        {"type": "text", "text": "And now?", "cache_control": {"type": "ephemeral"}},
    ]
    server.play("It stays dry.")
    turns = [*ASK, {"role": "assistant", "content": first.content}, {"role": "user", "content": results}]
    answer = ask(server, tools=[WEATHER], messages=turns)
    assert answer.content[0].text == "It stays dry."
    prompt = prompt_of(server)
    assert 'Let me see.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>' in prompt
    assert "<tool_response>\nNo.\n</tool_response>" in prompt
    assert "<tool_response>\nError: broken\n</tool_response>" in prompt
    assert "<|im_start|>user\nAnd now?<|im_end|>\n<|im_start|>assistant\n" in prompt


def test_an_answer_goes_on_where_the_last_turn_ends(server: Served) -> None:
    ask(server, messages=[*ASK, {"role": "assistant", "content": "The best answer is ("}])
    assert prompt_of(server).endswith("<|im_start|>assistant\nThe best answer is (")


def test_an_answer_of_a_schema(server: Served) -> None:
    server.play('{"city": "Rome"}')
    ask(server, output_config={"format": {"type": "json_schema", "schema": SCHEMA}})
    assert server.engine.requests[-1].sampling.grammar == json_schema_grammar(SCHEMA)


def test_tokens_are_counted(server: Served) -> None:
    given: dict[str, Any] = {"model": "smollm2", "messages": ASK, "system": "Be brief.", "tools": [WEATHER]}
    count = sdk(server).messages.count_tokens(**given).input_tokens
    sdk(server).messages.create(max_tokens=5, **given)
    assert count == len(server.engine.requests[-1].prompt_token_ids)


THINKING = (
    "{% for m in messages %}{{ m.content }}{% endfor %}{{ reasoning_effort }}"
    "{{ enable_thinking | default('unsaid') }}</think><think>\n"
)


def test_a_model_that_reasons_is_asked_to(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer, "chat_template", ChatTemplate(THINKING, {}))
    for kind, said in (("enabled", "True"), ("adaptive", "True"), ("disabled", "False")):
        body = {"messages": ASK, "max_tokens": 9, "thinking": {"type": kind}}
        prepared = prepare_messages.prepare(LoadedModel(READY, tokenizer), json.dumps(body).encode())
        assert f"{said}</think>" in tokenizer.decode(prepared.prompts[0])
        assert prepared.form == AnswerForm(reasons=True, begun=True)
    body = {"messages": ASK, "max_tokens": 9, "output_config": {"effort": "high"}}
    prepared = prepare_messages.prepare(LoadedModel(READY, tokenizer), json.dumps(body).encode())
    assert "highunsaid</think>" in tokenizer.decode(prepared.prompts[0])
    body["chat_template_kwargs"] = {"enable_thinking": "maybe"}
    prepared = prepare_messages.prepare(LoadedModel(READY, tokenizer), json.dumps(body).encode())
    assert "highmaybe</think>" in tokenizer.decode(prepared.prompts[0])


def test_reasoning_is_a_block_of_its_own(tokenizer: Tokenizer) -> None:
    body = json.dumps({"messages": ASK, "max_tokens": 9}).encode()
    model = LoadedModel(READY, tokenizer)
    prepared = prepare_messages.prepare(model, body)
    usage = Usage(3, 4, 7, PromptTokensDetails(0))

    def writer() -> MessageWriter:
        return MessageWriter("id", "m", msgspec.structs.replace(prepared, form=AnswerForm(reasons=True)), model)

    whole = json.loads(writer().full([SequenceOutput(0, "<think>So so</think>\n\nYes.", finish_reason="stop")], usage))
    thinking = {"type": "thinking", "thinking": "So so", "signature": ""}
    assert whole["content"] == [thinking, {"type": "text", "text": "Yes."}]
    streaming = writer()
    events = streaming.events(SequenceOutput(0, "<think>So"), lambda: usage) + streaming.events(
        SequenceOutput(0, " so</think>Yes", finish_reason="stop"), lambda: usage
    )
    data = [json.loads(event.split(b"data: ")[1]) for event in events]
    assert [(each["type"], each["index"]) for each in data if each["type"] != "content_block_delta"] == [
        ("content_block_start", 0), ("content_block_stop", 0), ("content_block_start", 1), ("content_block_stop", 1)
    ]  # fmt: skip
    assert [each["delta"] for each in data if each["type"] == "content_block_delta" and each["index"] == 0] == [
        {"type": "thinking_delta", "thinking": "So"}, {"type": "thinking_delta", "thinking": " so"}
    ]  # fmt: skip


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "eA=="}}
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "an image": ({"messages": [{"role": "user", "content": [IMAGE]}]}, "text only, not image"),
    "an image as a result": (
        {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x", "content": [IMAGE]}]}]},
        "text only, not image",
    ),
    "no limit": ({"max_tokens": None}, "max_tokens is required"),
    "too long": ({"max_tokens": 5000}, "context length is 512 tokens"),
    "a tool of Anthropic's": (
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        "tools[0].type: tools of type web_search_20250305 are not supported",
    ),
    "an edit of the prompt": ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
                              "context_management.edits[0].type"),
    "a speed that the model has not": ({"speed": "fast"}, "speed"),
    "a user's id that is no text": ({"metadata": {"user_id": 5}}, "metadata.user_id"),
    "a field of no kind": ({"mcp_servers": []}, "mcp_servers: unknown field"),
    "a tool that is not there": ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "x"}}, "no tool 'x'"),
    "a choice without a name": ({"tools": [WEATHER], "tool_choice": {"type": "tool"}},
                              "name is required if type is tool"),
    "a call by the user": (
        {"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "a", "name": "b", "input": {}}]}]},
        "role user cannot have content of type tool_use",
    ),
    "thinking of a model that does not": ({"thinking": {"type": "enabled", "budget_tokens": 1024},
                                           "max_tokens": 1100}, "context length is 512"),
    "thinking without room": ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "less than max_tokens"),
    "thinking that this model has not": ({"thinking": {"type": "enabled"}}, "no reasoning apart"),
    "a temperature of another API": ({"temperature": 1.5}, "temperature"),
    "a wrong schema": ({"output_config": {"format": {"type": "json_schema", "schema": {"type": "x"}}}},
                       "output_config.format: Invalid type"),
    "half a character": ({"messages": [{"role": "user", "content": [{"type": "text", "text": "\ud800"}]}]},
                         "messages[0].content[0].text: "),
    "an empty text": ({"messages": [{"role": "user", "content": ""}]}, "messages[0].content: must not be empty"),
    "no blocks": ({"messages": [*ASK, {"role": "user", "content": []}]}, "messages[1].content: must not be empty"),
    "a block of spaces": (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": " \n"}]}]},
        "messages[0].content: a text must be more than spaces",
    ),
    "an answer without content": ({"messages": [*ASK, {"role": "assistant", "content": ""}, *ASK]}, "messages[1]"),
}  # fmt: skip


def test_an_answer_may_begin_with_nothing(server: Served) -> None:
    for content in ("", []):
        messages = [*ASK, {"role": "assistant", "content": content}]
        assert ask(server, messages=messages).content[0].text == "Hello there."


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_reported_in_anthropics_shape(server: Served, name: str) -> None:
    fields, message = WRONG[name]
    asked = json.dumps({"model": "smollm2", "max_tokens": 100, "messages": ASK, **fields})
    answer = server.http.post(PATH, content=asked, headers={"Content-Type": "application/json"})
    body = answer.json()
    assert (answer.status_code, set(body), body["type"]) == (400, {"type", "error", "request_id"}, "error")
    assert body["error"]["type"] == "invalid_request_error" and message in body["error"]["message"]
    assert body["request_id"] == answer.headers["request-id"] == answer.headers["x-request-id"]
    assert server.engine.requests == []


def test_other_errors_are_those_of_the_sdk(server: Served) -> None:
    with pytest.raises(anthropic.NotFoundError) as missing:
        ask(server, model="claude")
    assert missing.value.body["error"]["type"] == "not_found_error"  # type: ignore[index,call-overload]
    server.play("one two", finish="error")
    with pytest.raises(anthropic.InternalServerError) as broken:
        ask(server)
    assert broken.value.body["error"]["type"] == "api_error"  # type: ignore[index,call-overload]
    with pytest.raises(anthropic.APIStatusError, match="NaN in the logits") as ended:
        stream(server)
    request_id = ended.value.response.headers["request-id"]
    assert ended.value.body["request_id"] == request_id  # type: ignore[index,call-overload]
    answer = server.http.post(PATH, json={}, headers={"anthropic-version": "yesterday"})
    assert (answer.status_code, answer.json()["error"]["message"][:17]) == (400, "anthropic-version")


def test_a_key_in_anthropics_header(start: Callable[..., Served], tmp_path: Path) -> None:
    server = start(api_key_file=write_keys(tmp_path / "keys.yaml", "ann"))
    given: dict[str, Any] = {"model": "smollm2", "max_tokens": 5, "messages": ASK}
    assert sdk(server, api_key="sk-ann").messages.create(**given).type == "message"
    assert sdk(server, api_key=None, auth_token="sk-ann").messages.create(**given).type == "message"
    assert server.engine.requests[-1].tenant == "ann"
    with pytest.raises(anthropic.AuthenticationError) as refused:
        sdk(server, api_key="sk-bob").messages.create(**given)
    assert refused.value.body["error"]["type"] == "authentication_error"  # type: ignore[index,call-overload]
    for header in ({"x-api-key": "sk-bob"}, {"x-api-key": ""}, {}):
        answer = server.http.post("/v1/completions", json={"prompt": "x"}, headers=header)
        assert (answer.status_code, set(answer.json())) == (401, {"error"})


def test_nothing_of_a_body_reaches_a_prompt_unread(tokenizer: Tokenizer) -> None:
    """Reasoning that only Anthropic can read is left out; that of this server's own answers is not."""
    turn = [{"type": "redacted_thinking", "data": "SECRET"}, {"type": "text", "text": "Yes."}]
    body = {"messages": [*ASK, {"role": "assistant", "content": turn}, *ASK], "max_tokens": 9}
    prepared = prepare_messages.prepare(LoadedModel(READY, tokenizer), json.dumps(body).encode())
    prompt = tokenizer.decode(prepared.prompts[0])
    assert "Yes." in prompt and "SECRET" not in prompt
    with pytest.raises(APIError, match="seed"):
        prepare_messages.prepare(LoadedModel(READY, tokenizer), json.dumps({**body, "seed": "x"}).encode())
