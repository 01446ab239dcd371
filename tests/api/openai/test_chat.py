"""/v1/chat/completions as the openai SDK and a plain reader see it."""

from __future__ import annotations

import json
from dataclasses import asdict, fields, replace
from typing import Any

import openai
import pytest

from octavo_engine.sampling_params import SamplingDefaults
from tests.api.scripted_engine import EOS, READY
from tests.api.served import Served

ASK: list[Any] = [{"role": "user", "content": "Hi"}]


def events(server: Served, path: str = "/v1/chat/completions", **body: Any) -> list[Any]:
    """The data of all events of a stream, [DONE] as a string."""
    answer = server.http.post(path, json={"stream": True, **body})
    assert answer.status_code == 200
    lines = [line for line in answer.text.split("\n") if line]
    assert all(line.startswith(("data: ", "event: error")) for line in lines)
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    return [item if item == "[DONE]" else json.loads(item) for item in data]


def test_whole_answer(server: Served) -> None:
    answer = server.openai().chat.completions.create(model="smollm2", messages=ASK)
    [choice] = answer.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", "Hello there.", "stop")
    assert (answer.object, answer.service_tier, choice.message.annotations) == ("chat.completion", "default", [])
    assert answer.id.startswith("chatcmpl-")
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4  # three and the end of sequence
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 4
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 16


def test_the_prompt_is_the_rendered_template(server: Served) -> None:
    server.openai().chat.completions.create(
        model="smollm2", messages=[{"role": "developer", "content": "Be brief."}, *ASK]
    )
    assert server.tokenizer.decode(server.engine.requests[0].prompt_token_ids, skip_special_tokens=False) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_streamed_answer(server: Served) -> None:
    stream = server.openai().chat.completions.create(model="smollm2", messages=ASK, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "Hello there."


async def test_streamed_answer_with_the_asynchronous_client(server: Served) -> None:
    stream = await server.async_openai().chat.completions.create(model="smollm2", messages=ASK, stream=True)
    assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == "Hello there."


def test_order_and_shape_of_chunks(server: Served) -> None:
    *chunks, usage, done = events(server, messages=ASK, stream_options={"include_usage": True})
    assert done == "[DONE]"
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
        {"role": "assistant", "content": ""},
        {"content": "Hello"},
        {"content": " there"},
        {"content": "."},
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, None, None, "stop"]
    assert {(c["id"], c["created"], c["model"], c["object"]) for c in [*chunks, usage]} == {
        (usage["id"], usage["created"], "smollm2", "chat.completion.chunk")
    }
    assert all(chunk["usage"] is None for chunk in chunks)
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 4


def test_as_many_choices_as_openai_allows(server: Served) -> None:
    answer = server.openai().chat.completions.create(model="smollm2", messages=ASK, n=128, logprobs=True)
    assert [choice.index for choice in answer.choices] == list(range(128))
    assert answer.choices[127].logprobs is not None and answer.choices[127].logprobs.refusal is None


def test_no_usage_and_no_empty_choices_unless_asked_for(server: Served) -> None:
    *chunks, done = events(server, messages=ASK)
    assert done == "[DONE]"
    assert all(len(chunk["choices"]) == 1 and "usage" not in chunk for chunk in chunks)


def test_max_tokens_in_both_spellings(server: Served) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        answer = server.openai().chat.completions.create(model="smollm2", messages=ASK, extra_body={name: 2})
        assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("Hello there", "length")


def test_default_is_all_the_room_there_is(server: Served) -> None:
    server.openai().chat.completions.create(model="smollm2", messages=ASK)
    request = server.engine.requests[0]
    assert request.sampling.max_tokens == 512 - len(request.prompt_token_ids)


def test_emoji_split_over_tokens_arrives_whole(server: Served) -> None:
    server.play("ok 🤗👩‍👩‍👧 東京!")
    *chunks, _ = events(server, messages=ASK)
    texts = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
    assert "".join(texts) == "ok 🤗👩‍👩‍👧 東京!"
    assert not any("\ufffd" in text for text in texts)


def test_stop_string_across_tokens_ends_and_aborts(server: Served) -> None:
    server.play("one two three four", hold_after=3)
    answer = server.openai().chat.completions.create(model="smollm2", messages=ASK, stop=["o thr", "zzz"])
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("one tw", "stop")
    assert answer.choices[0].model_extra == {"stop_reason": "o thr"}
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 3
    server.wait_until(lambda: server.engine.aborted == [server.engine.requests[0].request_id])


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        ({}, None),
        ({"stop_token_ids": [EOS]}, None),
        ({"stop_token_ids": [EOS], "ignore_eos": True}, EOS),
    ],
)
def test_the_models_own_end_is_no_stop_reason(server: Served, extra: dict[str, Any], reason: int | None) -> None:
    answer = server.openai().chat.completions.create(model="smollm2", messages=ASK, extra_body=extra)
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].model_extra == {"stop_reason": reason}
    *_, last, _ = events(server, messages=ASK, **extra)
    assert last["choices"][0]["stop_reason"] == reason


def test_a_stop_token_of_the_request_is_its_stop_reason(server: Served) -> None:
    tokens = server.tokenizer.encode("one two three")
    server.play(tokens=tokens)
    answer = server.openai().completions.create(
        model="smollm2", prompt="x", max_tokens=2, extra_body={"stop_token_ids": tokens[1:2]}
    )
    assert answer.choices[0].model_extra == {"stop_reason": tokens[1]}


def test_a_stop_token_is_shown_where_stops_are_to_be(server: Served) -> None:
    *_, last = server.tokenizer.encode("Hello there")
    for asked, text in ((True, "Hello there"), (False, "Hello"), (None, "Hello")):
        body = {"messages": ASK, "max_tokens": 2, "stop_token_ids": [last], "logprobs": True}
        body["include_stop_str_in_output"] = asked
        choice = server.http.post("/v1/chat/completions", json=body).json()["choices"][0]
        assert (choice["message"]["content"], choice["stop_reason"]) == (text, last)
        assert "".join(each["token"] for each in choice["logprobs"]["content"]) == text


@pytest.mark.parametrize(("skips", "end"), [(True, ""), (None, ""), (False, "<|im_end|>")])
def test_the_models_own_end_is_shown_where_stops_and_special_tokens_are_to_be(
    server: Served, skips: bool | None, end: str
) -> None:
    asked = {"messages": ASK, "include_stop_str_in_output": True, "skip_special_tokens": skips, "logprobs": True}
    choice = server.http.post("/v1/chat/completions", json=asked).json()["choices"][0]
    assert (choice["message"]["content"], choice["stop_reason"]) == (f"Hello there.{end}", None)
    assert "".join(each["token"] for each in choice["logprobs"]["content"]) == f"Hello there.{end}"
    without = server.http.post("/v1/chat/completions", json={**asked, "include_stop_str_in_output": False}).json()
    assert without["choices"][0]["message"]["content"] == "Hello there."


def test_stop_string_never_shows_in_a_stream(server: Served) -> None:
    server.play("alpha STOP beta")
    *chunks, _ = events(server, messages=ASK, stop="STOP")
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert text == "alpha "
    assert chunks[-1]["choices"][0] == {
        "index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop", "stop_reason": "STOP",
    }  # fmt: skip


def test_a_held_beginning_of_a_stop_string_is_flushed(server: Served) -> None:
    server.play("alpha ST")
    *chunks, _ = events(server, messages=ASK, stop="STOP")
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "alpha ST"


def test_logprobs(server: Served) -> None:
    answer = server.openai().chat.completions.create(model="smollm2", messages=ASK, logprobs=True, top_logprobs=3)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert [entry.token for entry in logprobs.content] == ["Hello", " there", "."]
    first = logprobs.content[0]
    assert (first.logprob, first.bytes) == (-1.5, list(b"Hello"))
    assert [top.logprob for top in first.top_logprobs] == [-0.25, -1.5, -9999.0]


def test_logprobs_of_a_stream_are_complete_though_text_is_held_back(server: Served) -> None:
    server.play("🤗 STare")
    *chunks, _ = events(server, messages=ASK, logprobs=True, stop="STOP")
    logprobs = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    entries = [entry for each in logprobs if each for entry in each["content"]]
    assert b"".join(bytes(entry["bytes"]) for entry in entries).decode() == "🤗 STare"
    assert all(entry["top_logprobs"] == [] for entry in entries)


def test_several_choices(server: Served) -> None:
    answer = server.openai().chat.completions.create(model="smollm2", messages=ASK, n=2, seed=7)
    assert [(c.index, c.message.content) for c in answer.choices] == [(0, "Hello there."), (1, "Hello there.")]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 8
    assert answer.usage.prompt_tokens == len(server.engine.requests[0].prompt_token_ids)
    assert sorted(str(request.sampling.seed) for request in server.engine.requests) == ["7", "8"]


def test_several_choices_streamed(server: Served) -> None:
    *chunks, done = events(server, messages=ASK, n=3)
    assert done == "[DONE]"
    for index in range(3):
        own = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
        assert own[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(choice["delta"].get("content", "") for choice in own) == "Hello there."
        assert [choice["finish_reason"] for choice in own].count("stop") == 1


def test_several_tokens_in_one_output(server: Served) -> None:
    server.play("one two three STOP four five", step=4)
    answer = server.openai().chat.completions.create(
        model="smollm2", messages=ASK, stop="STOP", logprobs=True, max_tokens=50
    )
    assert answer.choices[0].message.content == "one two three "
    assert answer.choices[0].logprobs is not None
    assert answer.usage is not None
    assert len(answer.choices[0].logprobs.content or []) == answer.usage.completion_tokens


def test_sampling_parameters_reach_the_engine(server: Served) -> None:
    server.openai().chat.completions.create(
        model="smollm2",
        messages=ASK,
        temperature=0.5,
        top_p=0.25,
        seed=3,
        presence_penalty=1.5,
        frequency_penalty=-1.5,
        logit_bias={"5": -100},
        max_tokens=9,
        extra_body={
            "top_k": 40, "min_p": 0.125, "repetition_penalty": 1.25, "min_tokens": 2, "stop_token_ids": [7],
            "timeout": 9.0,
        },
    )  # fmt: skip
    request = server.engine.requests[0]
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.25, 40, 0.125)
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (1.5, -1.5, 1.25)
    assert (sampling.seed, sampling.max_tokens, sampling.min_tokens) == (3, 9, 2)
    assert (sampling.logit_bias, sampling.stop_token_ids, sampling.logprobs) == (((5, -100.0),), (EOS, 7), None)
    assert request.timeout is not None
    assert 0 < request.timeout <= 9


def test_ignore_eos_and_null_means_absent(server: Served) -> None:
    names = (
        "temperature",
        "top_p",
        "stop",
        "seed",
        "n",
        "max_tokens",
        "logit_bias",
        "tools",
        "response_format",
        "user",
    )
    body = {"messages": ASK, "ignore_eos": True, **dict.fromkeys(names)}
    assert server.http.post("/v1/chat/completions", json=body).status_code == 200
    sampling = server.engine.requests[0].sampling
    assert (sampling.stop_token_ids, sampling.temperature, sampling.seed) == ((), 1.0, None)


def test_what_a_request_leaves_open_is_as_the_model_wants_it(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    own = SamplingDefaults(temperature=0.6, top_k=20, top_p=0.95, min_p=0.05, repetition_penalty=1.05)
    monkeypatch.setattr(server.engine.state, "ready", replace(READY, sampling=own))  # other tests have this server, too
    for body in ({}, {"temperature": 1, "top_k": -1, "top_p": 1, "min_p": 0, "repetition_penalty": 1}):
        assert server.http.post("/v1/chat/completions", json={"messages": ASK, **body}).status_code == 200
    open_, neutral = (
        {field.name: getattr(request.sampling, field.name) for field in fields(SamplingDefaults)}
        for request in server.engine.requests
    )
    assert (open_, neutral) == (asdict(own), asdict(SamplingDefaults()))


def test_what_other_clients_send_is_accepted(server: Served) -> None:
    body = {
        "messages": ASK, "user": "u", "store": True, "metadata": {"a": "b"}, "service_tier": "auto", "unheard_of": [1],
        "parallel_tool_calls": False, "reasoning_effort": "low", "tool_choice": "none", "tools": [], "top_p": 0,
        "response_format": {"type": "text"}, "priority": 0,
    }  # fmt: skip
    assert server.http.post("/v1/chat/completions", json=body).status_code == 200


def test_parts_of_a_message_and_chat_template_kwargs(server: Served) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    body = {"messages": [{"role": "user", "content": parts}], "chat_template_kwargs": {"enable_thinking": False}}
    assert server.http.post("/v1/chat/completions", json=body).status_code == 200
    assert "one\ntwo<|im_end|>" in server.tokenizer.decode(
        server.engine.requests[0].prompt_token_ids, skip_special_tokens=False
    )


def test_continue_final_message(server: Served) -> None:
    messages = [*ASK, {"role": "assistant", "content": "Well,"}]
    body = {"messages": messages, "continue_final_message": True}
    assert server.http.post("/v1/chat/completions", json=body).status_code == 200
    prompt = server.tokenizer.decode(server.engine.requests[0].prompt_token_ids, skip_special_tokens=False)
    assert prompt.endswith("assistant\nWell,")


@pytest.mark.parametrize(
    ("finish", "begun", "status", "code"),
    [
        ("error", False, 500, "engine_error"),
        ("memory", False, 503, "out_of_memory_retry"),
        ("timeout", False, 503, "queue_timeout"),
        ("timeout", True, 503, "deadline_exceeded"),
        ("abort", True, 503, "server_shutting_down"),
        ("invalid", True, 400, "not_answerable"),
    ],
)
def test_failures_of_a_whole_answer(server: Served, finish: str, begun: bool, status: int, code: str) -> None:
    server.play(tokens=server.tokenizer.encode("Hello") if begun else [], finish=finish)
    with pytest.raises(openai.APIStatusError) as caught:
        server.openai().chat.completions.create(model="smollm2", messages=ASK)
    assert (caught.value.status_code, caught.value.code) == (status, code)
    assert ("retry-after" in caught.value.response.headers) == (status == 503)


@pytest.mark.parametrize(
    ("finish", "code"), [("error", "engine_error"), ("timeout", "deadline_exceeded"), ("invalid", "not_answerable")]
)
def test_failures_in_a_stream_are_error_events(server: Served, finish: str, code: str) -> None:
    server.play("Hello there.", finish=finish)
    stream = server.openai().chat.completions.create(model="smollm2", messages=ASK, stream=True)
    said = ""
    with pytest.raises(openai.APIError) as caught:
        for chunk in stream:
            said += chunk.choices[0].delta.content or ""
    assert said == "Hello there."
    assert caught.value.code == code
    raw = server.http.post("/v1/chat/completions", json={"messages": ASK, "stream": True}).text
    assert "event: error\ndata: {" in raw
    assert "[DONE]" not in raw
