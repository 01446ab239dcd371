"""OpenAI's Responses API, through the real `openai` SDK."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import openai
import pytest
from pydantic import BaseModel

from octavo_engine.output_parsing.answer_form import AnswerForm
from octavo_engine.output_parsing.formats.hermes import HERMES
from octavo_engine.output_parsing.formats.tool import Tool
from octavo_engine.server.generation.sequence import SequenceOutput
from octavo_engine.server.generation.usage import PromptTokensDetails, Usage
from octavo_engine.server.openai.responses.prepare_response import prepare
from octavo_engine.server.openai.responses.writer import ResponseWriter
from octavo_engine.server.preparation.loaded_model import LoadedModel
from octavo_engine.structured.grammar import json_schema_grammar, regex_grammar
from octavo_engine.structured.structural_tags import structural_tag_grammar
from octavo_engine.text.chat_template import ChatTemplate
from octavo_engine.text.tokenizer import Tokenizer
from tests.api.scripted_engine import READY
from tests.api.served import Served

SCHEMA: dict[str, Any] = {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False
}  # fmt: skip
WEATHER: Any = {"type": "function", "name": "weather", "description": "Of a city.", "parameters": SCHEMA}
CALL = 'Let me see.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
PATH = "/v1/responses"


def ask(server: Served, **options: Any) -> Any:
    return server.openai().responses.create(**{"model": "smollm2", "input": "Will it rain?", **options})


def prompt_of(server: Served) -> str:
    return server.tokenizer.decode(server.engine.requests[-1].prompt_token_ids, skip_special_tokens=False)


def test_a_response_has_the_answer_the_settings_and_the_usage(server: Served) -> None:
    found = ask(
        server, instructions="Be brief.", max_output_tokens=50, temperature=0.5, metadata={"a": "b"}, store=True
    )
    assert (found.object, found.status, found.output_text, found.model) == (
        "response", "completed", "Hello there.", "smollm2"
    )  # fmt: skip
    [message] = found.output
    assert (message.type, message.role, message.status) == ("message", "assistant", "completed")
    assert (found.instructions, found.max_output_tokens, found.temperature) == ("Be brief.", 50, 0.5)
    assert (found.metadata, found.store, found.tools, found.tool_choice) == ({"a": "b"}, False, [], "auto")
    assert (found.error, found.incomplete_details, found.previous_response_id) == (None, None, None)
    usage = found.usage
    prompt = len(server.engine.requests[-1].prompt_token_ids)
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (prompt, 4, prompt + 4)
    assert usage.input_tokens_details.cached_tokens == 16
    assert "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWill it rain?<|im_end|>" in prompt_of(server)


def test_the_events_of_a_stream(server: Served) -> None:
    events = list(ask(server, stream=True))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"
    ]  # fmt: skip
    assert kinds[-4:] == [
        "response.output_text.done", "response.content_part.done", "response.output_item.done", "response.completed"
    ]  # fmt: skip
    assert set(kinds[4:-4]) == {"response.output_text.delta"}
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert (events[0].response.status, events[0].response.output, events[0].response.usage) == ("in_progress", [], None)
    assert "".join(event.delta for event in events[4:-4]) == events[-4].text == "Hello there."
    whole = events[-1].response
    assert (whole.output_text, whole.status, whole.usage.output_tokens) == ("Hello there.", "completed", 4)
    assert {event.item_id for event in events[3:-2]} == {whole.output[0].id}
    assert {event.response.id for event in events if hasattr(event, "response")} == {whole.id}
    raw = server.http.post(PATH, json={"input": "Hi", "stream": True}).text
    assert raw.startswith("event: response.created\ndata: {") and "[DONE]" not in raw


def test_an_answer_that_is_cut_off(server: Served) -> None:
    found = ask(server, max_output_tokens=2)
    assert (found.status, found.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert found.output[0].status == "incomplete"
    events = list(ask(server, max_output_tokens=2, stream=True))
    assert (events[-1].type, events[-2].item.status) == ("response.incomplete", "incomplete")
    assert events[-1].response.incomplete_details.reason == "max_output_tokens"


def test_a_call_of_a_tool_and_its_result(server: Served) -> None:
    server.play(CALL)
    first = ask(server, tools=[WEATHER])
    message, call = first.output
    assert message.content[0].text == "Let me see."
    assert (call.type, call.name, call.arguments, call.status) == (
        "function_call", "weather", '{"city": "Paris"}', "completed"
    )  # fmt: skip
    server.play("It stays dry.")
    history = [
        {"role": "user", "content": [{"type": "input_text", "text": "Will it rain?"}]},
        *[item.to_dict() for item in first.output],
        {"type": "function_call_output", "call_id": call.call_id, "output": "No."},
        {"type": "reasoning", "id": "rs_1", "summary": []},
    ]
    assert ask(server, tools=[WEATHER], input=history).output_text == "It stays dry."
    given: Any = {"model": "smollm2", "tools": [WEATHER], "input": history}
    counted = server.openai().responses.input_tokens.count(**given)
    assert counted.input_tokens == len(server.engine.requests[-1].prompt_token_ids)
    prompt = prompt_of(server)
    assert 'Let me see.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>' in prompt
    assert prompt.endswith("<tool_response>\nNo.\n</tool_response><|im_end|>\n<|im_start|>assistant\n")


def test_a_streamed_call(server: Served) -> None:
    server.play(CALL)
    with server.openai().responses.stream(model="smollm2", input="Rain?", tools=[WEATHER]) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert [item.type for item in final.output] == ["message", "function_call"]
    pieces = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    [done] = [event for event in events if event.type == "response.function_call_arguments.done"]
    assert "".join(pieces) == done.arguments == '{"city": "Paris"}' and len(pieces) > 2
    added = [event for event in events if event.type == "response.output_item.added"]
    assert [(event.output_index, event.item.type) for event in added] == [(0, "message"), (1, "function_call")]
    assert added[1].item.call_id == final.output[1].call_id and added[1].item.arguments == ""


ALLOWED = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "weather"}]}


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "weather"}, ALLOWED])
def test_a_demanded_call(server: Served, choice: Any) -> None:
    server.play('<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>')
    [call] = ask(server, tools=[WEATHER], tool_choice=choice).output
    assert (call.type, call.arguments) == ("function_call", '{"city": "Rome"}')
    form = HERMES.calls([Tool("weather", SCHEMA)], "", several=choice in ("required", ALLOWED))
    assert server.engine.requests[-1].sampling.grammar == structural_tag_grammar(form)


def test_fields_that_vllm_adds_to_this_api(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer, "chat_template", ChatTemplate("{{ tone }}: {{ messages[0].content }}", {}))
    body = {
        "input": "Hi", "structured_outputs": {"regex": "[0-9]+"}, "chat_template_kwargs": {"tone": "calm"},
        "skip_special_tokens": False, "request_id": "r",
    }  # fmt: skip
    prepared = prepare(LoadedModel(READY, tokenizer), json.dumps(body).encode())
    assert prepared.sampling.grammar == regex_grammar("[0-9]+")
    assert tokenizer.decode(prepared.prompts[0]) == "calm: Hi"
    assert not prepared.text.skip_special_tokens


class City(BaseModel):
    city: str


def test_an_answer_of_a_schema(server: Served) -> None:
    server.play('{"city": "Rome"}')
    form = {"type": "json_schema", "name": "city", "schema": SCHEMA, "strict": True}
    found = ask(server, text={"format": form})
    assert server.engine.requests[-1].sampling.grammar == json_schema_grammar(SCHEMA)
    assert (found.text.format.type, found.text.format.name) == ("json_schema", "city")
    parsed = server.openai().responses.parse(model="smollm2", input="Which?", text_format=City)
    assert parsed.output_parsed == City(city="Rome")


def test_log_probabilities(server: Served) -> None:
    found = ask(server, include=["message.output_text.logprobs"], top_logprobs=2)
    logprobs = found.output[0].content[0].logprobs
    assert "".join(each.token for each in logprobs) == "Hello there." and len(logprobs[0].top_logprobs) >= 2
    events = list(ask(server, include=["message.output_text.logprobs"], stream=True))
    deltas = [each for event in events if event.type == "response.output_text.delta" for each in event.logprobs]
    assert [each.token for each in deltas] == [each.token for each in logprobs]


def test_reasoning_is_an_item_of_its_own(tokenizer: Tokenizer) -> None:
    model = LoadedModel(READY, tokenizer)
    prepared = prepare(model, json.dumps({"input": "Hi"}).encode())

    def writer() -> ResponseWriter:
        return ResponseWriter("m", msgspec.structs.replace(prepared, form=AnswerForm(reasons=True)), model)

    usage = Usage(3, 4, 7, PromptTokensDetails(0))
    text = "<think>So so</think>\n\nYes."
    answer = SequenceOutput(0, text, finish_reason="stop", token_ids=tuple(tokenizer.encode(text)))
    whole = json.loads(writer().full([answer], usage))
    assert 4 < whole["usage"]["output_tokens_details"]["reasoning_tokens"] < len(answer.token_ids) - 1
    reasoning, message = whole["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "So so"}]
    assert message["content"][0]["text"] == "Yes."
    events = writer().events(SequenceOutput(0, "<think>So</think>Yes.", finish_reason="stop"), lambda: usage)
    kinds = [json.loads(event.split(b"data: ")[1])["type"].removeprefix("response.") for event in events]
    assert kinds[:6] == [
        "output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done", "content_part.done",
        "output_item.done",
    ]  # fmt: skip


def test_a_failure_in_a_stream(server: Served) -> None:
    server.play("one two", finish="error")
    with pytest.raises(openai.APIError, match="NaN in the logits") as failed:
        list(ask(server, stream=True))
    assert failed.value.code == "engine_error"
    last = server.http.post(PATH, json={"input": "Hi", "stream": True}).text.split("\n\n")[-2]
    assert last.startswith("event: error\n")
    data = json.loads(last.split("data: ")[1])
    assert (data["type"], data["code"], data["sequence_number"] > 2) == ("error", "engine_error", True)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an earlier response": ({"previous_response_id": "resp_1"}, "previous_response_id"),
    "a conversation": ({"conversation": "conv_1"}, "conversation"),
    "a prompt that is kept": ({"prompt": {"id": "x"}}, "prompt"),
    "the background": ({"background": True}, "background"),
    "a tool of OpenAI's": ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    "an image": ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
                 "input[0].content[0].type"),
    "an item of a tool": ({"input": [{"type": "web_search_call", "id": "x"}]}, "input[0].type"),
    "no input": ({"input": []}, "input"),
    "input of no kind": ({"input": 5}, "input"),
    "a field of no kind": ({"moderation": {"model": "x"}}, "moderation"),
    "messages of a chat": ({"messages": []}, "messages"),
    "a cut": ({"truncation": "auto"}, "truncation"),
    "a form of no kind": ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
    "two forms": ({"structured_outputs": {"choice": ["a"]}, "text": {"format": {"type": "json_object"}}},
                  "text.format"),
    "variables of no kind": ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs"),
    "a summary": ({"reasoning": {"summary": "long"}}, "reasoning.summary"),
    "a wrong schema": ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "x"}}}},
                       "text.format"),
    "too long": ({"max_output_tokens": 5000}, "input"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_named(server: Served, name: str) -> None:
    fields, param = REFUSED[name]
    answer = server.http.post(PATH, json={"input": "Hi", **fields})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert server.engine.requests == []


def test_what_changes_nothing_is_taken(server: Served) -> None:
    ask(
        server, store=False, user="me", service_tier="auto", prompt_cache_key="k", safety_identifier="s",
        truncation="disabled", background=False, max_tool_calls=3,
        reasoning={"effort": "low", "summary": "detailed", "context": "all_turns", "mode": "standard"},
        text={"verbosity": "low"}, include=["reasoning.encrypted_content"],
        extra_body={"seed": 5, "conversation": None},
    )  # fmt: skip
    assert server.engine.requests[-1].sampling.seed == 5
    for method in ("GET", "DELETE"):
        answer = server.http.request(method, f"{PATH}/resp_1")
        assert (answer.status_code, "stores no responses" in answer.text) == (404, True)
    with pytest.raises(openai.NotFoundError, match="stores no responses"):
        server.openai().responses.cancel("resp_1")
    with pytest.raises(openai.NotFoundError, match="stores no responses"):
        server.openai().responses.input_items.list("resp_1")
    with pytest.raises(openai.NotFoundError, match="compacts no conversations"):
        server.openai().responses.compact(model="smollm2", input="Hi")
