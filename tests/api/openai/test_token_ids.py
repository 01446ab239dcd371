"""What answers contain beside their texts: token ids, token names by id, usage details, fingerprint, time."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from octavo_engine.engine.info import ModelInfo
from octavo_engine.server.preparation.loaded_model import LoadedModel
from tests.api.scripted_engine import EOS, READY
from tests.api.served import Served

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
ASK = {"messages": [{"role": "user", "content": "Hi"}], "return_token_ids": True}


def chunks(server: Served, path: str, **body: Any) -> list[dict[str, Any]]:
    lines = server.http.post(path, json={**body, "stream": True}).text.splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]


def ids(text: str, server: Served) -> list[int]:
    return server.tokenizer.encode(text)


def test_a_chat_has_the_tokens_of_its_prompt_and_its_choices(server: Served) -> None:
    server.play("Hi 😀.")
    wanted = [*ids("Hi 😀.", server), EOS]
    whole = server.http.post(CHAT, json={**ASK, "n": 2}).json()
    assert whole["prompt_token_ids"] == server.http.post("/tokenize", json=ASK).json()["tokens"]
    assert [choice["token_ids"] for choice in whole["choices"]] == [wanted, wanted]
    streamed = chunks(server, CHAT, **ASK)
    assert streamed[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    assert all("prompt_token_ids" not in chunk for chunk in streamed[1:])
    assert [token for chunk in streamed for token in chunk["choices"][0].get("token_ids", ())] == wanted


def test_a_completion_has_them_for_each_prompt(server: Served) -> None:
    server.play("b")
    prompts = ["one two", "three"]
    whole = server.http.post(TEXT, json={"prompt": prompts, "return_token_ids": True}).json()
    assert [choice["prompt_token_ids"] for choice in whole["choices"]] == [ids(each, server) for each in prompts]
    assert [choice["token_ids"] for choice in whole["choices"]] == [[*ids("b", server), EOS]] * 2
    for echo in ({}, {"echo": True}, {"echo": True, "logprobs": 1}):
        streamed = chunks(server, TEXT, prompt="one two", return_token_ids=True, **echo)
        assert streamed[0]["choices"][0]["prompt_token_ids"] == ids("one two", server)
        found = [token for chunk in streamed for token in chunk["choices"][0].get("token_ids", ())]
        assert found == [*ids("b", server), EOS], echo


def test_tokens_behind_a_stop_string_are_no_part_of_the_answer(server: Served) -> None:
    server.play("one two three four", step=4)
    answer = server.http.post(TEXT, json={"prompt": "a", "stop": " two", "return_token_ids": True}).json()
    assert answer["choices"][0]["token_ids"] == ids("one two", server)
    assert answer["usage"]["completion_tokens"] == len(ids("one two", server))


def test_without_asking_there_are_none(server: Served) -> None:
    for path, body in ((CHAT, {"messages": ASK["messages"]}), (TEXT, {"prompt": "a"})):
        assert "token_ids" not in server.http.post(path, json=body).text


def test_log_probabilities_name_tokens_by_their_ids(server: Served) -> None:
    server.play("Hi 😀.")
    shown = [f"token_id:{token}" for token in ids("Hi 😀.", server)]
    asked = {"return_tokens_as_token_ids": True, "logprobs": True, "top_logprobs": 1}
    content = server.http.post(CHAT, json={**ASK, **asked}).json()["choices"][0]["logprobs"]["content"]
    assert [each["token"] for each in content] == shown
    assert all(top["token"].startswith("token_id:") for each in content for top in each["top_logprobs"])
    assert bytes(byte for each in content for byte in each["bytes"]).decode() == "Hi 😀."
    body = {"prompt": "one two", "return_tokens_as_token_ids": True, "logprobs": 1, "echo": True}
    by_id, by_text = (
        server.http.post(TEXT, json={**body, "return_tokens_as_token_ids": asked}).json()["choices"][0]["logprobs"]
        for asked in (True, False)
    )
    assert by_id["tokens"][: -len(shown) - 1] == [f"token_id:{token}" for token in ids("one two", server)]
    assert all(name.startswith("token_id:") for top in by_id["top_logprobs"][1:] for name in top)
    assert by_id["text_offset"] == by_text["text_offset"]
    streamed = chunks(server, TEXT, **{**body, "echo": False})
    found = [chunk["choices"][0]["logprobs"] for chunk in streamed if chunk["choices"][0]["logprobs"]]
    assert [name for each in found for name in each["tokens"]] == shown
    offsets = [offset for each in found for offset in each["text_offset"]]
    assert [offset for offset, name in zip(offsets, shown, strict=True) if name == shown[-1]] == ["Hi 😀.".index(".")]
    assert offsets == [offset - len("one two") for offset in by_id["text_offset"][-len(shown) - 1 : -1]]


def test_answers_tell_the_use_of_their_tokens_how_they_were_computed_and_how_long_it_took(server: Served) -> None:
    model = LoadedModel(READY, server.tokenizer)
    for path, body in ((CHAT, {"messages": ASK["messages"]}), (TEXT, {"prompt": "a"})):
        answer = server.http.post(path, json=body)
        names = ("reasoning_tokens", "audio_tokens", "accepted_prediction_tokens", "rejected_prediction_tokens")
        assert answer.json()["usage"]["completion_tokens_details"] == dict.fromkeys(names, 0)
        assert answer.json()["system_fingerprint"] == model.fingerprint
        assert {chunk["system_fingerprint"] for chunk in chunks(server, path, **body)} == {model.fingerprint}
        assert 0 <= int(answer.headers["openai-processing-ms"]) < 120_000
    other = dataclasses.replace(READY, model=ModelInfo(commit="abc", size=5))
    assert LoadedModel(other, server.tokenizer).fingerprint != model.fingerprint


def test_ping_is_health_for_those_with_a_key(server: Served) -> None:
    for method in ("GET", "POST"):
        assert server.http.request(method, "/ping").json()["status"] == "ok"
