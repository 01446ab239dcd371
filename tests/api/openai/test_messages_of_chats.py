"""The messages of a chat: fields that OpenAI's API requires, and those that clients send back from earlier answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from octavo_engine.server.openai.preparation.prepare_chat import prepare
from octavo_engine.server.preparation.loaded_model import LoadedModel
from octavo_engine.text.chat_template import ChatTemplate
from octavo_engine.text.tokenizer import Tokenizer
from tests.api.scripted_engine import READY
from tests.api.served import Served

CHAT = "/v1/chat/completions"
HI = {"role": "user", "content": "Hi"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("message", "missing"),
    [
        ({"role": "tool", "content": "5"}, "tool_call_id"),
        ({"role": "tool", "content": "5", "tool_call_id": None}, "tool_call_id"),
        ({"role": "tool", "tool_call_id": "call_1"}, "content"),
        ({"role": "system"}, "content"),
        ({"role": "developer", "content": None}, "content"),
        ({"role": "user"}, "content"),
        ({"role": "assistant"}, "content"),
        ({"role": "assistant", "content": None, "tool_calls": []}, "content"),
    ],
)
def test_what_a_message_needs(server: Served, message: dict[str, Any], missing: str) -> None:
    answer = server.http.post(CHAT, json={"messages": [HI, message]})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "missing_required_parameter")
    assert error["param"] == f"messages[1].{missing}"
    assert error["message"] == f"messages[1].{missing} is required in a message of role {message['role']}"


@pytest.mark.parametrize(
    ("path", "field"), [(CHAT, "messages"), ("/v1/completions", "prompt"), ("/v1/embeddings", "input")]
)
def test_null_is_absent_in_what_is_required_too(server: Served, path: str, field: str) -> None:
    for body in ({}, {field: None}):
        error = server.http.post(path, json=body).json()["error"]
        assert (error["code"], error["param"]) == ("missing_required_parameter", field)


def test_content_without_parts_is_refused(server: Served) -> None:
    answer = server.http.post(CHAT, json={"messages": [{"role": "user", "content": []}]})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages[0].content")


@pytest.mark.parametrize(
    ("earlier", "prompt"),
    [
        ({"content": "Yes."}, "Hi|Yes.||"),
        ({"content": [{"type": "refusal", "refusal": "No."}]}, "Hi|No.||"),
        ({"content": None, "refusal": "No."}, "Hi|No.||"),
        ({"reasoning_content": "Hm."}, "Hi||Hm.|"),
        ({"reasoning": "Hm.", "content": "Yes."}, "Hi|Yes.|Hm.|"),
        ({"reasoning": {"text": "Hm."}, "content": "Yes."}, "Hi|Yes.||"),
        ({"content": None, "tool_calls": [CALL]}, "Hi|||f"),
    ],
)
def test_an_earlier_answer(
    earlier: dict[str, Any], prompt: str, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = (
        "{{ messages[0].content }}{% if tools %}{% endif %}{% for m in messages[1:] %}|{{ m.content }}"
        "|{{ m.reasoning_content or '' }}"
        "|{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}{% endfor %}"
    )
    monkeypatch.setattr(tokenizer, "chat_template", ChatTemplate(source, {}))
    body = json.dumps({"messages": [HI, {"role": "assistant", **earlier}]}).encode()
    assert tokenizer.decode(prepare(LoadedModel(READY, tokenizer), body).prompts[0]) == prompt


def test_models_answer_head(server: Served) -> None:
    for path, status in (("/v1/models", 200), ("/v1/models/smollm2", 200), ("/v1/models/other", 404)):
        answer = server.http.head(path)
        assert (answer.status_code, answer.content) == (status, b"")
