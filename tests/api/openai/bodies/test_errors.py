"""Invalid input: errors in OpenAI's shape with a helpful sentence, no effect on others, and bounds of every field."""

from __future__ import annotations

import gzip
import json
import re
import types
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
import openai
import pytest
from pydantic import AfterValidator, BaseModel, Field
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, processors

from octavo_engine.server.admission.auth import KeyFile
from octavo_engine.server.anthropic import protocol as anthropic_protocol
from octavo_engine.server.errors import APIError
from octavo_engine.server.openai import protocol
from octavo_engine.server.openai.bodies import field_types
from octavo_engine.server.openai.preparation import prepare_chat, prepare_completion
from octavo_engine.server.openai.preparation.prompts import encode_prompt, encode_text
from octavo_engine.server.openai.responses import protocol as responses_protocol
from octavo_engine.server.preparation import text_pool
from octavo_engine.server.preparation.loaded_model import LoadedModel
from octavo_engine.text.tokenizer import Tokenizer
from octavo_engine.text.tokenizer_parts import TokenizerParts
from tests.api import odd_worker
from tests.api.scripted_engine import READY
from tests.api.served import PATIENCE, Served

HI = {"role": "user", "content": "Hi"}
CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
RESPONSES = "/v1/responses"
EMBEDDINGS = "/v1/embeddings"


def check_shape(answer: Any) -> dict[str, Any]:
    """The error object, after checking that it is one and that it gives nothing away."""
    body = answer.json()
    assert set(body) == {"error"}
    error: dict[str, Any] = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert answer.headers["x-request-id"]
    assert not re.search(r"0x[0-9a-f]{6,}|Traceback|/site-packages/|\.py", answer.text)
    return error


CASES: list[tuple[str, Any, str | None, str]] = [
    (CHAT, {}, "messages", "required"),
    (CHAT, {"messages": []}, "messages", "at least 1"),
    (CHAT, {"messages": "Hi"}, "messages", "list"),
    (CHAT, {"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", "'system'"),
    (CHAT, {"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "text or a list"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text",
     'must be of the shape {"type": "text", "text": "..."}'),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]},
     "messages[0].content[0].type", "text only"),
    (CHAT, {"messages": [{"role": "user", "content": "\ud800"}]}, "messages[0].content", "surrogate"),
    (CHAT, {"messages": [HI], "guided_json": {"\ud800": {}}}, "guided_json", "surrogate"),
    (CHAT, {"messages": [HI], "max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
    (CHAT, {"messages": [HI], "max_tokens": True}, "max_tokens", "integer"),
    (CHAT, {"messages": [HI], "max_tokens": "5"}, "max_tokens", "integer"),
    (CHAT, {"messages": [HI], "max_tokens": 10**9}, "max_tokens", "less than or equal"),
    (CHAT, {"messages": [HI], "max_tokens": 5.5}, "max_tokens", "integer"),
    (CHAT, {"messages": [HI], "max_tokens": 1e300}, "max_tokens", "less than or equal"),
    (CHAT, {"messages": [HI], "temperature": 2.1}, "temperature", "less than or equal to 2"),
    (CHAT, {"messages": [HI], "temperature": -0.1}, "temperature", "greater"),
    (CHAT, {"messages": [HI], "top_p": 1.01}, "top_p", "less"),
    (CHAT, {"messages": [HI], "top_k": -2}, "top_k", "greater"),
    (CHAT, {"messages": [HI], "min_p": 2}, "min_p", "less"),
    (CHAT, {"messages": [HI], "n": 129}, "n", "less than or equal to 128"),
    (CHAT, {"messages": [HI], "n": 0}, "n", "greater"),
    (CHAT, {"messages": [HI], "n": 100, "logprobs": True, "top_logprobs": 20}, "logprobs", "more than 1024"),
    (TEXT, {"prompt": ["x"] * 3, "n": 100}, "n", "make 300 answers, more than 256"),
    (TEXT, {"prompt": ["x"] * 257}, "prompt", "at most 256"),
    (TEXT, {"prompt": [[46778] * 500] * 2, "n": 128, "echo": True}, "echo", "10368000 characters to repeat"),
    (CHAT, {"messages": [HI], "seed": 1 << 63}, "seed", "less"),
    (CHAT, {"messages": [HI], "presence_penalty": 3}, "presence_penalty", "less"),
    (CHAT, {"messages": [HI], "repetition_penalty": 0}, "repetition_penalty", "equal to 0.01"),
    (CHAT, {"messages": [HI], "repetition_penalty": 1e-40}, "repetition_penalty", "equal to 0.01"),
    (CHAT, {"messages": [HI], "repetition_penalty": 100.1}, "repetition_penalty", "equal to 100"),
    (CHAT, {"messages": [HI], "stop": ["a"] * 5}, "stop", "at most 4"),
    (CHAT, {"messages": [HI], "stop": ""}, "stop[0]", "at least 1"),
    (CHAT, {"messages": [HI], "stop": "x" * 257}, "stop[0]", "at most 256"),
    (CHAT, {"messages": [HI], "top_logprobs": 21, "logprobs": True}, "top_logprobs", "less"),
    (CHAT, {"messages": [HI], "top_logprobs": 2}, "top_logprobs", "logprobs is true"),
    (CHAT, {"messages": [HI], "logit_bias": {"5": 101}}, "logit_bias.5", "less"),
    (CHAT, {"messages": [HI], "logit_bias": {"x": 1}}, "logit_bias.x", "pattern"),
    (CHAT, {"messages": [HI], "logit_bias": []}, "logit_bias", "Input should be an object"),
    (CHAT, {"messages": [HI], "response_format": "json"}, "response_format", "Input should be an object"),
    (CHAT, {"messages": []}, "messages", "at least 1 item, not 0"),
    (CHAT, {"messages": [HI], "logit_bias": {"5": 100, "05": 100}}, "logit_bias.05", "pattern"),
    (CHAT, {"messages": [HI], "logit_bias": {"00": 1}}, "logit_bias.00", "pattern"),
    (CHAT, {"messages": [HI], "logit_bias": {"٥": 1}}, "logit_bias.٥", "pattern"),
    (CHAT, {"messages": [HI], "logit_bias": {str(i): 1 for i in range(301)}}, "logit_bias", "at most 300"),
    (CHAT, {"messages": [HI], "logit_bias": {"49152": 1}}, "logit_bias", "outside the model's vocabulary of 49152"),
    (CHAT, {"messages": [HI], "stop_token_ids": [49152]}, "stop_token_ids", "outside the model's vocabulary of 49152"),
    (CHAT, {"messages": [HI], "stop_token_ids": [-1]}, "stop_token_ids[0]", "greater"),
    (CHAT, {"messages": [HI], "min_tokens": 5, "max_tokens": 4}, "min_tokens", "more than max_tokens"),
    (CHAT, {"messages": [HI], "timeout": 0}, "timeout", "equal to 0.001"),
    (CHAT, {"messages": [HI], "cache_salt": "a b"}, "cache_salt", "pattern"),
    (CHAT, {"messages": [HI], "stream_options": {"include_usage": True}}, "stream_options", "stream is true"),
    (CHAT, {"messages": [HI], "chat_template_kwargs": {"messages": []}}, "messages", "may not set messages"),
    (CHAT, {"messages": [HI], "continue_final_message": True, "add_generation_prompt": True},
     "continue_final_message", "exclude"),
    *[(CHAT, {"messages": [HI], "chat_template_kwargs": value}, "chat_template_kwargs", says) for value, says in [
        (5, "must be an object"), ({"custom_tools": []}, "field tools"), ({"xml_Tools": 1}, "field tools"),
        ({"x": [[[[[1]]]]]}, "nested more than 4"), ({"x": [1] * 300}, "holds 303 values"),
        ({str(i): i for i in range(200)}, "holds 401 values"), ({"x": "y" * 17_000}, "17001 characters"),
        ({"x" * 17_000: 1}, "17000 characters"), ({"x": 1 << 70}, "too large"),
    ]],
    (CHAT, {"messages": [HI], "tool_choice": {"type": "function"}}, "tool_choice", 'must be "none", "auto"'),
    (CHAT, {"messages": [HI], "tool_choice": "any"}, "tool_choice", 'must be "none", "auto"'),
    (CHAT, {"messages": [HI], "tool_choice": {"type": "function", "function": {"name": ""}}},
     "tool_choice.function.name", "pattern"),
    (CHAT, {"messages": [HI], "tool_choice": {"type": "custom"}}, "tool_choice", 'must be "none", "auto"'),
    (CHAT, {"messages": [HI], "tool_choice": {"type": "allowed_tools"}}, "tool_choice", 'must be "none", "auto"'),
    (RESPONSES, {"input": "x " * 60_000}, "input", "context"),
    (RESPONSES, {"input": "x", "max_output_tokens": 9_999_999}, "input", "context"),
    (RESPONSES, {"input": "\ud800"}, "input", "surrogate"),
    (RESPONSES, {"input": "x", "\ud800": 1}, None, "the body: contains an unpaired surrogate"),
    (RESPONSES, {"input": "x", "tools": [{"type": "\ud800"}]}, "tools[0].type", "surrogate"),
    (CHAT, {"messages": [HI], "tools": [{"type": "mcp", "mcp": {"name": "f"}}]}, "tools[0].type",
     "tools of type mcp are not supported"),
    (RESPONSES, {"input": [{}]}, "input[0].type", "input[0].type is required"),
    (RESPONSES, {"input": [5]}, "input[0]", "Input should be an object"),
    (RESPONSES, {"input": "x", "text": {"format": {"type": "xml"}}}, "text.format.type", "must be one of 'text', "),
    (RESPONSES, {"input": [{"role": "robot", "content": "x"}]}, "input[0].role", "'user'"),
    (RESPONSES, {"input": [{"type": "function_call", "call_id": "c", "name": "f"}]}, "input[0].arguments", "required"),
    (RESPONSES, {"input": "x", "text": {"format": {"type": "json_schema", "schema": {}}}},
     "text.format.name", "required"),
    (RESPONSES, {"input": "x", "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "odd"}}}},
     "text.format", "text.format: Invalid type"),
    (EMBEDDINGS, {"input": [[5] * 20_000]}, "input", "20000 in the prompt and 0 for the answer"),
    (TEXT, {}, "prompt", "required"),
    (TEXT, {"prompt": ""}, "prompt", "empty"),
    (TEXT, {"prompt": []}, "prompt", "must be a text"),
    (TEXT, {"prompt": [[]]}, "prompt", "empty"),
    (TEXT, {"prompt": ["a", 5]}, "prompt", "mixes"),
    (TEXT, {"prompt": [5, -1]}, "prompt", "whole numbers"),
    (TEXT, {"prompt": [1.5]}, "prompt", "or a token id is not a whole number"),
    (TEXT, {"prompt": [True]}, "prompt", "mixes"),
    (TEXT, {"prompt": [49152]}, "prompt", "outside the model's vocabulary of 49152"),
    (TEXT, {"prompt": [[5], [1 << 40]]}, "prompt", "whole numbers"),
    (TEXT, {"prompt": "x", "logprobs": 21}, "logprobs", "less"),
    ("/tokenize", {}, "prompt", "either"),
    ("/tokenize", {"prompt": "a", "messages": [HI]}, "prompt", "either"),
    ("/detokenize", {"tokens": [49152]}, "tokens", "outside the model's vocabulary"),
    ("/detokenize", {"tokens": [-1]}, "tokens[0]", "greater"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "param", "says"), CASES)
def test_bad_values_are_named(server: Served, path: str, body: Any, param: str | None, says: str) -> None:
    answer = server.http.post(path, content=json.dumps(body), headers={"Content-Type": "application/json"})
    error = check_shape(answer)
    assert (answer.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert says in error["message"]
    assert server.engine.requests == []


NOT_YET: dict[str, Any] = {
    "structural_tag": {}, "guided_whitespace_pattern": " ", "best_of": 2,
    "chat_template": "{{ x }}",
    "functions": [{"name": "f"}], "documents": [{"text": "x"}], "audio": {},
}  # fmt: skip


@pytest.mark.parametrize("param", NOT_YET)
def test_what_does_not_act_yet_is_refused_not_ignored(server: Served, param: str) -> None:
    error = check_shape(server.http.post(CHAT, json={"messages": [HI], param: NOT_YET[param]}))
    assert (error["param"], error["code"]) == (param, "unsupported_parameter")
    assert "not supported by this version yet" in error["message"]


def test_suffix_and_prompt_logprobs_of_a_stream_are_refused(server: Served) -> None:
    for extra, param in (({"suffix": "x"}, "suffix"), ({"prompt_logprobs": 0, "stream": True}, "prompt_logprobs")):
        error = check_shape(server.http.post(TEXT, json={"prompt": "a", **extra}))
        assert (error["param"], error["code"]) == (param, "unsupported_parameter")


@pytest.mark.parametrize("asked", [{"prompt_logprobs": 20, "n": 8}, {"echo": True, "logprobs": 20, "n": 8}])
def test_more_log_probabilities_of_prompts_than_one_answer_may_hold(server: Served, asked: dict[str, Any]) -> None:
    error = check_shape(server.http.post(TEXT, json={"prompt": [[5] * 500, [5] * 281], "max_tokens": 0, **asked}))
    assert error["param"] in asked
    assert "make 131208 log probabilities, more than 131072 in one request; send the prompts in 2" in error["message"]


@pytest.mark.parametrize(
    ("content", "kind", "code"),
    [
        (b"{", "application/json", "invalid_json"),
        (b"", "application/json", "invalid_value"),
        (b"[]", "application/json", "invalid_value"),
        (b"null", "application/json", "invalid_value"),
        (b"[" * 200_000, "application/json", "invalid_json"),
        (b'{"messages": [{"role": "user", "content": "x"}], "temperature": NaN}', "application/json", "invalid_json"),
        (b'{"messages": [{"role": "user", "content": "x"}], "unknown": -Infinity}', "application/json", "invalid_json"),
        (
            b'{"messages": [{"role": "user", "content": "x"}], "temperature": 1e999}',
            "application/json",
            "invalid_value",
        ),
        (b'{"messages": [], "seed": ' + b"9" * 5000 + b"}", "application/json", "invalid_json"),
        (b"\xff\xfe", "application/json", "invalid_json"),
        (json.dumps({"prompt": "x"}).encode("utf-16"), "application/json", "invalid_json"),
        (b'{"messages": []}', "text/plain", "unsupported_content_type"),
        (b'{"messages": []}', "", "unsupported_content_type"),
    ],
)
def test_broken_bodies(server: Served, content: bytes, kind: str, code: str) -> None:
    answer = server.http.post(CHAT, content=content, headers={"Content-Type": kind})
    error = check_shape(answer)
    assert (answer.status_code, error["code"]) == (400, code)


@pytest.mark.parametrize(
    ("path", "fields", "says"),
    [(RESPONSES, {"n" * 100_000: 1}, "unknown field; leave it out"),
     (CHAT, {"metadata": {"n" * 100_000: 1}}, "metadata.nnn"),
     (CHAT, {"logit_bias": {"n" * 100_000: 1}}, "should match pattern"),
     (RESPONSES, {"text": {"format": {"type": "n" * 100_000}}}, "must be one of 'text'")],
)  # fmt: skip
def test_an_error_quotes_little_of_what_a_client_sends(
    server: Served, path: str, fields: dict[str, Any], says: str
) -> None:
    """Answers with names of megabytes would fill the memory if clients did not read them."""
    answer = server.http.post(path, json={"messages" if path == CHAT else "input": [HI], **fields})
    assert says in check_shape(answer)["message"]
    assert answer.status_code == 400 and len(answer.content) < 5000


def test_a_compressed_body_is_415(server: Served) -> None:
    body = json.dumps({"messages": [HI]}).encode()
    kind = {"Content-Type": "application/json"}
    for path in (CHAT, "/tokenize"):
        answer = server.http.post(path, content=gzip.compress(body), headers={**kind, "Content-Encoding": "gzip"})
        error = check_shape(answer)
        assert (answer.status_code, error["code"]) == (415, "unsupported_content_encoding")
        assert "Content-Encoding: gzip" in error["message"] and answer.headers["accept-encoding"] == "identity"
    for encoding in ("identity", "UTF-8"):  # the latter is a mistake that clients make
        answer = server.http.post(CHAT, content=body, headers={**kind, "Content-Encoding": encoding})
        assert answer.status_code == 200, answer.text
    assert server.http.get("/v1/models", headers={"Content-Encoding": "gzip"}).status_code == 200


@pytest.mark.parametrize(("field", "value", "code"), [
    ("temperature", "hot", "invalid_type"),
    ("temperature", 3, "decimal_above_max_value"),
    ("temperature", -1, "decimal_below_min_value"),
    ("n", 0, "integer_below_min_value"),
    ("n", 1000, "integer_above_max_value"),
    ("n", 1.5, "invalid_type"),
    ("stop", ["a"] * 5, "array_above_max_length"),
    ("stop", [""], "string_below_min_length"),
    ("model", "x" * 600, "string_above_max_length"),
    ("messages", [], "array_below_min_length"),
    ("messages", "x", "invalid_type"),
    ("reasoning_effort", "enormous", "invalid_value"),
    ("stream_options", {"include_usage": True}, "invalid_value"),
    ("audio", {}, "unsupported_parameter"),
    ("prompt", ["x"] * 257, "array_above_max_length"),
])  # fmt: skip
def test_codes_are_openais(server: Served, field: str, value: Any, code: str) -> None:
    path = TEXT if field == "prompt" else CHAT
    error = check_shape(server.http.post(path, json={"messages": [HI], field: value}))
    assert (error["code"], error["param"].split("[")[0]) == (code, field)


@pytest.mark.parametrize(("path", "method", "status", "code"), [
    ("/v1/audio/speech", "POST", 404, "not_found"),
    ("/v1/nonsense", "GET", 404, "not_found"),
    ("/index.html", "GET", 404, "not_found"),
    ("/", "POST", 405, "method_not_allowed"),
    ("/docs", "GET", 404, "not_found"),
    (CHAT, "GET", 405, "method_not_allowed"),
    ("/metrics", "POST", 405, "method_not_allowed"),
    ("/v1/models/other", "GET", 404, "model_not_found"),
])  # fmt: skip
def test_what_is_not_there(server: Served, path: str, method: str, status: int, code: str) -> None:
    answer = server.http.request(method, path)
    assert (answer.status_code, check_shape(answer)["code"]) == (status, code)


def test_a_template_without_end_harms_no_other_request(
    start: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_pool, "WALL_SECONDS", PATIENCE)  # CPU time is what ends them, however busy the machine is
    server = start(program=odd_worker.PROGRAM)
    server.play("Hello there.")
    with ThreadPoolExecutor() as pool:
        hostile = [
            pool.submit(server.http.post, CHAT, json={"messages": [{"role": "user", "content": content}]})
            for content in ("nested loops", "long text", "long range", "quadratic")
        ]
        assert server.http.post(TEXT, json={"prompt": "x"}).json()["choices"][0]["text"] == "Hello there."
        for answer in hostile:
            assert answer.result().status_code == 400
            assert check_shape(answer.result())["code"] in ("chat_template_error", "preparation_timeout")


def test_unknown_model(server: Served) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        server.openai().chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": "x"}])
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    assert "smollm2" in caught.value.message


def test_context_length_says_by_how_much(server: Served) -> None:
    """LiteLLM raises its ContextWindowExceededError, to which programs react, only for OpenAI's words, not its code."""
    with pytest.raises(openai.BadRequestError) as caught:
        server.openai().completions.create(model="smollm2", prompt=[5] * 500, max_tokens=20)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "prompt")
    assert "this model's maximum context length is 512 tokens" in caught.value.message
    assert "by 8" in caught.value.message
    answer = server.http.post(CHAT, json={"messages": [{"role": "user", "content": "x " * 600}]})
    assert check_shape(answer)["code"] == "context_length_exceeded"


def test_a_text_that_cannot_fit_is_refused_unread(server: Served) -> None:
    """A limit on characters applies if the tokenizer drops some of them, as the demo model's does."""
    answer = server.http.post(TEXT, json={"prompt": "x" * ((1 << 17) + 1)})
    error = check_shape(answer)
    assert error["code"] == "context_length_exceeded"
    assert "131073 characters is too long: with this model's tokenizer at most 131072 are read" in error["message"]


def test_a_text_whose_beginning_is_too_long_is_not_tokenized_further(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """130,000 digits are as many tokens, for which a text worker had no memory: the error spoke of complexity."""
    read, encode = list[int](), Tokenizer.encode
    monkeypatch.setattr(
        Tokenizer,
        "encode",
        lambda self, text, *more, **options: read.append(len(text)) or encode(self, text, *more, **options),
    )
    model = LoadedModel(READY, tokenizer)
    with pytest.raises(APIError, match=r"512 tokens, and the first 3072 characters alone have \d+") as caught:
        encode_prompt(model, "0123456789" * 13_000, True, "prompt")
    assert caught.value.detail.code == "context_length_exceeded" and read == [3072]
    assert len(encode_prompt(model, "word " * 2000, False, "prompt")) >= 2000


def test_characters_say_what_cannot_fit_where_no_byte_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Backend(models.BPE({letter: at for at, letter in enumerate(pre_tokenizers.ByteLevel.alphabet())}, []))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    model = LoadedModel(READY, Tokenizer(TokenizerParts(backend)))
    assert len(encode_text(model, "x" * 2000, False, "prompt", keep=512)) == 512
    assert len(encode_text(model, "x" * 1024, False, "prompt")) == 1024, "two bytes spell a token at most"
    monkeypatch.setattr(Tokenizer, "encode", None)  # such a text is not tokenized
    with pytest.raises(APIError, match="length is 512 tokens, into which a text of 1025 characters cannot fit"):
        encode_text(model, "x" * 1025, False, "prompt")


def test_a_prompt_to_be_continued_lacks_the_token_that_ends_texts() -> None:
    """Some tokenizers add it, of models for embeddings and of those that people have trained further."""
    backend = Backend(models.BPE({"a": 0, "b": 1, "</s>": 2}, []))
    backend.post_processor = processors.TemplateProcessing(single="b $A </s>", special_tokens=[("b", 1), ("</s>", 2)])
    model = LoadedModel(READY, Tokenizer(TokenizerParts(backend)))
    prepared = prepare_completion.prepare(model, b'{"prompt": "aa"}')
    assert prepared.prompts == ((1, 0, 0),)
    assert encode_prompt(model, "aa", True, "input") == [1, 0, 0, 2]


def test_request_id_is_echoed_when_it_is_one(server: Served) -> None:
    for given, echoed in (("abc-123", True), ("a b", False), ("x" * 129, False), ("http://evil/", True)):
        shown = server.http.get("/version", headers={"X-Request-Id": given}).headers["x-request-id"]
        assert (shown == given) is echoed
    server.http.post(TEXT, json={"prompt": "a"}, headers={"X-Request-Id": "mine"})
    assert "mine" not in server.engine.requests[0].request_id


def _annotations(annotation: Any, metadata: tuple[Any, ...] = ()) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Each plain type inside of an annotation with the constraints on it."""
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *extra = get_args(annotation)
        if _checks_itself(extra):
            return
        yield from _annotations(inner, (*metadata, *extra))
    elif origin in (Union, types.UnionType):
        for part in get_args(annotation):
            yield from _annotations(part, metadata)
    else:
        yield annotation, metadata
        for part in get_args(annotation) if origin in (list, dict) else ():
            yield from _annotations(part)


def _constraints(metadata: tuple[Any, ...]) -> set[str]:
    found: set[str] = set()
    for item in metadata:
        for each in getattr(item, "metadata", [item]):
            for name in ("ge", "gt", "le", "lt", "max_length", "pattern"):
                if getattr(each, name, None) is not None:
                    found.add(name)
            if isinstance(each, annotated_types.MaxLen):
                found.add("max_length")
    return found


OWN_BOUNDS = {field_types._prompts, field_types._content, field_types._template_values}
"""Validators that check lengths and depths themselves; test_bad_values_are_named shows it."""


def _unbounded(model: type[BaseModel]) -> Iterator[str]:
    for name, field in model.model_fields.items():
        if _checks_itself(field.metadata):
            continue
        for plain, metadata in _annotations(field.annotation, tuple(field.metadata)):
            have = _constraints(metadata)
            if plain in (int, float):
                bounded = bool(have & {"ge", "gt"} and have & {"le", "lt"})
            elif plain is str or (get_origin(plain) or plain) in (list, dict, set, tuple):
                bounded = bool(have & {"max_length", "pattern"})
            elif plain is Any:
                bounded = any(isinstance(item, AfterValidator) for item in metadata)
            else:
                bounded = plain in (bool, type(None)) or get_origin(plain) is Literal or issubclass(plain, BaseModel)
            if not bounded:
                yield f"{model.__name__}.{name}: {plain}"


def _checks_itself(metadata: Iterable[Any]) -> bool:
    return any(getattr(item, "func", None) in OWN_BOUNDS for item in metadata)


def _models() -> list[type[BaseModel]]:
    modules = (protocol, anthropic_protocol, responses_protocol)
    found = [each for module in modules for each in vars(module).values() if isinstance(each, type)]
    return [*{each: None for each in found if issubclass(each, BaseModel)}, KeyFile]


@pytest.mark.parametrize("model", _models())
def test_every_field_is_bounded(model: type[BaseModel]) -> None:
    assert list(_unbounded(model)) == []


def test_the_walk_would_find_an_unbounded_field() -> None:
    class Careless(BaseModel):
        number: int | None = None
        half: Annotated[int, annotated_types.Ge(0)] = 0
        many: list[Annotated[int, annotated_types.Interval(ge=0, le=1)]] = []
        text: str = ""
        anything: Any = None
        bag: Annotated[dict[Annotated[str, Field(max_length=1)], Any], Field(max_length=1)] = {}
        bare: dict = {}  # type: ignore[type-arg]
        items: list = []  # type: ignore[type-arg]
        inner: Annotated[list[str], Field(max_length=1)] = []
        other: bytes = b""

    assert len(list(_unbounded(Careless))) == 10


def test_small_variables_of_a_template_are_taken(server: Served) -> None:
    variables = {"enable_thinking": False, "effort": "low", "limits": {"a": [1, 2.5, None]}}
    assert server.http.post(CHAT, json={"messages": [HI], "chat_template_kwargs": variables}).status_code == 200


def test_texts_are_bounded(monkeypatch: pytest.MonkeyPatch, tokenizer: Tokenizer) -> None:
    monkeypatch.setattr(field_types, "MAX_TEXT", 100)
    model, long = LoadedModel(READY, tokenizer), "x" * 101
    for prepare, body in [
        (prepare_completion.prepare, {"prompt": long}),
        (prepare_completion.prepare, {"prompt": ["x", long]}),
        (prepare_chat.prepare, {"messages": [{"role": "user", "content": long}]}),
        (prepare_chat.prepare, {"messages": [{"role": "user", "content": [{"type": "text", "text": "x" * 60}] * 2}]}),
    ]:
        with pytest.raises(APIError, match="at most 100 are allowed in one text"):
            prepare(model, json.dumps(body).encode())


@pytest.mark.parametrize(("asked", "given"), [(1e-40, 0.0), (1e-6, 0.0), (1e-4, 0.01), (0.5, 0.5), (None, 1.0)])
def test_temperatures_near_zero_are_what_they_are_for_vllm(server: Served, asked: float | None, given: float) -> None:
    assert server.http.post(CHAT, json={"messages": [HI], "temperature": asked}).status_code == 200
    assert server.engine.requests[0].sampling.temperature == given
