"""Fields of vLLM's and OpenAI's APIs: each has its effect, is refused by name, or changes nothing in an answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from string import ascii_lowercase
from typing import Any, get_args, get_type_hints

import pytest
from pydantic import BaseModel

from octavo_engine.server.anthropic.protocol import ToolUseBlock
from octavo_engine.server.endpoints.openapi_document import BODIES
from octavo_engine.server.errors import APIError
from octavo_engine.server.openai.bodies import unknown_fields
from octavo_engine.server.openai.bodies.body import parse
from octavo_engine.server.openai.bodies.unknown_fields import check_names, take_unknown
from octavo_engine.server.openai.preparation import prepare_chat
from octavo_engine.server.openai.protocol import ChatCompletionBody
from octavo_engine.server.openai.structured_outputs.fields import (
    Choices,
    Grammar,
    OptionalSchemaObject,
    ResponseFormat,
    Schema,
    SchemaObject,
    StructuralTag,
)
from octavo_engine.server.preparation.loaded_model import LoadedModel
from octavo_engine.server.preparation.text_limits import GRAMMAR_FIELDS, may_take_long
from octavo_engine.server.preparation.unknown_field_log import UnknownFieldLog
from octavo_engine.text.chat_template import ChatTemplate
from octavo_engine.text.tokenizer import Tokenizer
from tests.api.scripted_engine import READY
from tests.api.served import Served

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
ASK = {"messages": [{"role": "user", "content": "Hi"}]}

ASKING: dict[str, list[Any]] = {
    # how tokens are chosen
    "use_beam_search": [True], "length_penalty": [0.5, True], "best_of": [2], "allowed_token_ids": [[], [1 << 30]],
    "bad_words": ["x", ["x"] * 65], "logits_processors": [["x.y"]], "vllm_xargs": [{"a": 1}],
    "thinking_token_budget": [5], "repetition_detection": [{"max_pattern_size": 5}],
    "typical_p": [0.9], "repeat_penalty": [1.1], "mirostat": [2], "n_predict": [5], "max_new_tokens": [5],
    "watermarking": [True], "thinking_budget": [100], "top_a": [0.2], "dry_multiplier": [0.8], "xtc_probability": [0.5],
    "dynatemp_range": [0.5], "sampling_seed": [3], "random_seed": [3],
    "min_new_tokens": [5], "custom_logit_processor": ["x"], "stop_regex": ["a+"], "stop_sequences": [["x"]],
    "lora_path": ["x"],
    # structure
    "regex": ["a+"], "ebnf": ["x"], "json_schema": ["{}"], "grammar": ["x"],
    "guided_whitespace_pattern": [" "], "structural_tag": [{}],
    # what the answer shows
    "logprob_token_ids": [[5]], "return_token_ids": [1], "return_tokens_as_token_ids": ["yes"],
    "return_token_offsets": [True], "return_prompt_text": [True], "return_hidden_states": [True],
    # other inputs
    "truncation_side": ["right"], "input_ids": [[5]], "prompt_embeds": ["abc"],
    "kv_transfer_params": [{"do_remote_decode": True}], "ec_transfer_params": [{"a": 1}],
    "spaces_between_special_tokens": [5],
}  # fmt: skip
ASKING_CHAT: dict[str, list[Any]] = {
    "functions": [[{"name": "f"}]], "function_call": [{"name": "f"}], "documents": [[{"text": "x"}]],
    "chat_template": ["{{ x }}"], "audio": [{}], "modalities": [["text", "audio"], ["audio"]], "echo": [True],
    "web_search_options": [{}], "moderation": [{"model": "x", "policy": {"output": {"mode": "block"}}}],
    "reasoning_effort": ["enormous", 5], "suffix": ["x"], "include_reasoning": [0],
    "enable_thinking": [False], "thinking": [{"type": "disabled"}], "reasoning": [{"effort": "low"}],
    "prompt": ["x"], "input": ["x"], "instructions": ["x"], "system": ["x"], "previous_response_id": ["x"],
    "max_output_tokens": [5], "output_config": [{"effort": "low"}],
}  # fmt: skip
ASKING_TEXT: dict[str, list[Any]] = {
    "suffix": ["x"], "max_completion_tokens": [5], "messages": [ASK["messages"]], "tools": [[{"type": "function"}]],
    "tool_choice": ["required"], "functions": [[{"name": "f"}]], "function_call": [{"name": "f"}],
    "top_logprobs": [2], "reasoning_effort": ["low"], "chat_template": ["x"], "chat_template_kwargs": [{"a": 1}],
    "continue_final_message": [True],
}  # fmt: skip

HARMLESS: dict[str, list[Any]] = {
    "use_beam_search": [False], "length_penalty": [1, 1.0], "best_of": [1], "bad_words": [[]], "vllm_xargs": [{}],
    "response_format": [{"type": "text"}], "return_token_ids": [False], "return_tokens_as_token_ids": [False],
    "return_token_offsets": [False], "return_prompt_text": [False], "kv_transfer_params": [{}],
    "spaces_between_special_tokens": [True, False], "logits_processors": [[]],
    "typical_p": [1], "repeat_penalty": [1.0], "mirostat": [0], "top_a": [0.0], "thinking_token_budget": [-1],
    "watermarking": [False], "truncation_side": ["left"], "tools": [[]], "tool_choice": ["none", "auto"],
    # what changes nothing in an answer of text is ignored
    "user": ["me"], "metadata": [{"a": "b"}], "store": [True], "service_tier": ["auto"], "request_id": ["mine"],
    "mm_processor_kwargs": [{"a": 1}], "parallel_tool_calls": [False], "prediction": [{}], "session_id": ["x"],
    "safety_identifier": ["x"], "prompt_cache_key": ["x"], "prompt_cache_retention": ["24h"],
    "prompt_cache_options": [{"ttl": "30m"}],
    "guided_decoding_backend": ["outlines", "xgrammar"],
    "a_field_that_nobody_knows": [1],
}  # fmt: skip
OF_A_WRONG_TYPE: dict[str, list[Any]] = {
    "user": [5], "metadata": ["x", {"a": 1}, {str(i): "x" for i in range(17)}], "store": ["yes"], "service_tier": [3],
    "request_id": [5], "mm_processor_kwargs": ["x"], "safety_identifier": [["x"]], "prompt_cache_key": [5],
    "prompt_cache_retention": [{}], "prompt_cache_options": ["x"], "guided_decoding_backend": [1],
}  # fmt: skip
OF_A_WRONG_TYPE_IN_CHATS: dict[str, list[Any]] = {"verbosity": ["huge", 5], "prediction": ["x"]}
HARMLESS_CHAT: dict[str, list[Any]] = {
    "verbosity": ["low"],
    "echo": [False], "modalities": [["text"]],
    "reasoning_effort": ["none", "minimal", "low", "medium", "high", "xhigh", "max"],
    "add_special_tokens": [True, False],
}  # fmt: skip


def each(*tables: tuple[str, dict[str, list[Any]]]) -> list[tuple[str, str, Any]]:
    return [(path, name, value) for path, table in tables for name, values in table.items() for value in values]


def post(server: Served, path: str, **body: Any) -> Any:
    return server.http.post(path, json={**(ASK if path == CHAT else {"prompt": "Hi"}), **body})


@pytest.mark.parametrize(
    ("path", "name", "value"), each((CHAT, ASKING), (TEXT, ASKING), (CHAT, ASKING_CHAT), (TEXT, ASKING_TEXT))
)
def test_what_would_change_the_answer_is_refused_by_name(server: Served, path: str, name: str, value: Any) -> None:
    answer = post(server, path, **{name: value})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, name)
    assert name in error["message"]
    assert server.engine.requests == []


@pytest.mark.parametrize(("path", "name", "value"), each((CHAT, HARMLESS), (TEXT, HARMLESS), (CHAT, HARMLESS_CHAT)))
def test_what_changes_nothing_is_taken(server: Served, path: str, name: str, value: Any) -> None:
    for given in (value, None):
        assert post(server, path, **{name: given}).status_code == 200
    prompts = [request.prompt_token_ids for request in server.engine.requests]
    assert prompts[0] == prompts[1]


@pytest.mark.parametrize(
    ("path", "name", "value"), each((CHAT, OF_A_WRONG_TYPE), (TEXT, OF_A_WRONG_TYPE), (CHAT, OF_A_WRONG_TYPE_IN_CHATS))
)
def test_what_changes_nothing_has_its_type_all_the_same(server: Served, path: str, name: str, value: Any) -> None:
    answer = post(server, path, **{name: value})
    assert (answer.status_code, answer.json()["error"]["param"].partition(".")[0]) == (400, name)


def test_tokens_and_words_that_are_allowed_or_not(server: Served) -> None:
    for path in (CHAT, TEXT):
        answer = post(server, path, allowed_token_ids=[5, 7, 5], bad_words=["Paris", " and"], n=2, best_of=2)
        assert (answer.status_code, len(answer.json()["choices"])) == (200, 2)
    sampling = server.engine.requests[0].sampling
    assert sampling.allowed_token_ids == (5, 7)
    written = [server.tokenizer.decode(word) for word in sampling.bad_words_token_ids]
    assert written == ["Paris", " Paris", "and", " and"]
    held = post(server, CHAT, allowed_token_ids=[5], response_format={"type": "json_object"})
    assert (held.status_code, held.json()["error"]["param"]) == (400, "allowed_token_ids")


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_a_stream_counts_as_it_goes_where_that_is_asked_for(server: Served, path: str) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    lines = post(server, path, stream=True, stream_options=options).text.split("\n\n")
    usages = [json.loads(line.removeprefix("data: "))["usage"] for line in lines if line.startswith("data: {")]
    assert len(usages) > 2
    assert {usage["prompt_tokens"] for usage in usages} == {usages[-1]["prompt_tokens"]}
    counts = [usage["completion_tokens"] for usage in usages]
    assert counts == sorted(counts) and counts[0] < counts[-1]
    del options["include_usage"]
    assert '"usage"' not in post(server, path, stream=True, stream_options=options).text


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_a_prompt_is_cut_to_its_last_tokens(server: Served, path: str) -> None:
    post(server, path)
    post(server, path, truncate_prompt_tokens=3)
    post(server, path, truncate_prompt_tokens=400)
    whole, cut, longer = [request.prompt_token_ids for request in server.engine.requests]
    assert (cut, longer) == (whole[-3:], whole)


def test_a_prompt_is_cut_to_what_the_context_has_room_for(server: Served) -> None:
    """The context is 512 tokens. A text of any length is cut, however long."""
    answer = post(server, TEXT, prompt=[*range(3, 600)], max_tokens=12, truncate_prompt_tokens=-1, echo=True)
    assert list(server.engine.requests[0].prompt_token_ids) == list(range(600 - 500, 600))
    assert answer.json()["choices"][0]["text"].startswith(server.tokenizer.decode(range(100, 600)))
    assert answer.json()["usage"]["prompt_tokens"] == 500
    post(server, TEXT, prompt="the end of it " * 100_000, truncate_prompt_tokens=-1)
    tokens = server.tokenizer.encode("the end of it " * 1000)
    assert list(server.engine.requests[1].prompt_token_ids) == tokens[-(512 - 16) :]
    asked = {"messages": [{"role": "user", "content": "x " * 2000}], "truncate_prompt_tokens": -1}
    assert post(server, CHAT, **asked).status_code == 200
    assert [len(request.prompt_token_ids) for request in server.engine.requests[2:]] == [511]
    assert post(server, CHAT, max_completion_tokens=100, **asked).status_code == 200
    assert [len(request.prompt_token_ids) for request in server.engine.requests[3:]] == [412]


def test_a_prompt_whose_last_tokens_stand_too_far_back_is_refused(server: Served) -> None:
    """The demo's tokenizer drops these characters, so that the tokens to keep may stand before any number of them."""
    answer = post(server, TEXT, prompt="Hi" + "\x04" * (1 << 20), truncate_prompt_tokens=-1)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")


@pytest.mark.parametrize("value", [0, -2, 1.5, "3", True])
def test_a_prompt_is_not_cut_to_nonsense(server: Served, value: Any) -> None:
    answer = post(server, TEXT, truncate_prompt_tokens=value)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "truncate_prompt_tokens")


def test_a_cut_prompt_must_still_fit_beside_its_answer(server: Served) -> None:
    answer = post(server, TEXT, prompt=[5] * 600, truncate_prompt_tokens=505, max_tokens=16)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")


def prompt_of(tokenizer: Tokenizer, **body: Any) -> str:
    prepared = prepare_chat.prepare(LoadedModel(READY, tokenizer), json.dumps({**ASK, **body}).encode())
    return tokenizer.decode(prepared.prompts[0])


def test_how_hard_to_think_is_for_the_template_to_read(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in vLLM, an effort says too whether to think at all, which many templates ask for by another name."""
    template = ChatTemplate("{{ reasoning_effort | default('unsaid') }} {{ enable_thinking | default('unsaid') }}", {})
    monkeypatch.setattr(tokenizer, "chat_template", template)
    assert prompt_of(tokenizer, reasoning_effort="low") == "low True"
    assert prompt_of(tokenizer, reasoning_effort="none") == "none False"
    assert prompt_of(tokenizer) == "unsaid unsaid"
    both = prompt_of(tokenizer, reasoning_effort="low", chat_template_kwargs={"reasoning_effort": "high"})
    assert both == "high True"
    assert prompt_of(tokenizer, reasoning_effort="low", chat_template_kwargs={"enable_thinking": False}) == "low False"


def test_special_tokens_are_added_to_a_chat_when_asked_for(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    real = tokenizer.encode

    def encode(text: str, add_special_tokens: bool = True, *, continued: bool = False) -> list[int]:
        seen.append(add_special_tokens)
        return real(text, add_special_tokens, continued=continued)

    monkeypatch.setattr(tokenizer, "encode", encode)
    for asked in ({}, {"add_special_tokens": False}, {"add_special_tokens": True}):
        prompt_of(tokenizer, **asked)
    assert seen == [False, False, True]


OF_OTHER_SERVERS = """
    messages model audio frequency_penalty function_call functions logit_bias logprobs max_completion_tokens max_tokens
    metadata modalities moderation n parallel_tool_calls prediction presence_penalty prompt_cache_key
    prompt_cache_options prompt_cache_retention reasoning_effort response_format safety_identifier seed service_tier
    stop store stream stream_options temperature tool_choice tools top_logprobs top_p user verbosity
    web_search_options prompt best_of echo suffix input dimensions encoding_format
    use_beam_search top_k min_p repetition_penalty length_penalty stop_token_ids include_stop_str_in_output ignore_eos
    min_tokens skip_special_tokens spaces_between_special_tokens truncate_prompt_tokens truncation_side
    prompt_logprobs allowed_token_ids bad_words add_generation_prompt continue_final_message add_special_tokens
    documents chat_template chat_template_kwargs media_io_kwargs mm_processor_kwargs structured_outputs guided_json
    guided_regex guided_choice guided_grammar guided_decoding_backend guided_whitespace_pattern structural_tag priority
    request_id logits_processors return_tokens_as_token_ids return_token_ids cache_salt kv_transfer_params vllm_xargs
    include_reasoning thinking_token_budget repetition_detection data_parallel_rank prompt_embeds normalize
    use_activation embed_dtype endianness task parse_reasoning
    rid lora_path regex ebnf return_hidden_states bootstrap_host bootstrap_room stop_regex no_stop_trim
    separate_reasoning stream_reasoning input_ids custom_params custom_logit_processor return_routed_experts extra_key
    min_new_tokens max_new_tokens sampling_seed return_logprob logprob_start_len top_logprobs_num token_ids_logprob
    mirostat mirostat_tau typical_p repeat_penalty repeat_last_n dynatemp_range dry_multiplier xtc_probability
    top_n_sigma n_predict n_keep n_probs min_keep cache_prompt id_slot samplers grammar timings_per_token
    return_tokens reasoning_format parse_tool_calls
    models transforms route plugins usage provider top_a num_retries drop_params enable_thinking thinking_budget
    search_options enable_search random_seed safe_prompt keep_alive options speed
"""
"""Fields of OpenAI and vLLM, some of SGLang, of llama.cpp, and of gateways."""


@pytest.mark.parametrize("path", [CHAT, TEXT, "/v1/embeddings", "/tokenize", "/v1/rerank"])
def test_no_field_of_another_server_is_taken_for_a_misspelled_one(path: str) -> None:
    for name in OF_OTHER_SERVERS.split():
        check_names(BODIES[path], {name: 1})


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("max_token", "max_tokens"), ("maxTokens", "max_tokens"), ("temprature", "temperature"), ("topP", "top_p"),
        ("respones_format", "response_format"), ("tool", "tools"), ("stops", "stop"), ("TEMPERATURE", "temperature"),
        ("max_completions_tokens", "max_completion_tokens"), ("chat_template_args", "chat_template_kwargs"),
    ],
)  # fmt: skip
def test_a_misspelled_field_is_refused_with_the_one_that_was_meant(name: str, meant: str) -> None:
    with pytest.raises(APIError, match=f"^{name}: unknown field; did you mean {meant}\\?$") as raised:
        parse(ChatCompletionBody, json.dumps({**ASK, name: 1}).encode())
    assert (raised.value.status, raised.value.detail.param) == (400, name)
    assert raised.value.detail.code == "unknown_parameter"
    parse(ChatCompletionBody, json.dumps({**ASK, name: None}).encode())  # null means absent
    check_names(ChatCompletionBody, {name: 1, meant: 1})  # the field that was meant has its effect


def forget_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unknown_fields, "_noted", set())
    take_unknown()


def test_an_unknown_field_is_logged_once_and_not_any_number_of_them(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_names(monkeypatch)
    for _ in range(3):
        check_names(ChatCompletionBody, {"my_trace": 1, "x" * 1000: 1})
    log = UnknownFieldLog(str)
    log.write(taken := take_unknown())
    log.write(taken)  # from another worker
    assert [record.args for record in caplog.records] == [("my_trace",)]
    for first, second in product(ascii_lowercase, repeat=2):
        check_names(ChatCompletionBody, {f"{first}{second}_mine": 1})
    hostile = {f"max_token{'_' * 20}{number}": 1 for number in range(100_000)}
    check_names(ChatCompletionBody, hostile)
    log.write(names := take_unknown())
    assert len(names) == 99 and not take_unknown()
    log.write([f"{name}_again" for name in names])
    assert len(caplog.records) == 100


def test_an_unknown_field_whose_name_may_be_a_key_or_a_prompt_is_not_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_names(monkeypatch)
    for name in ("sk-proj-oT4zq9Wm", "oT4zq9WmK3xy", "My diagnosis is secret", "my_trace\n", "\x1b[2J", ""):
        check_names(ChatCompletionBody, {name: 1})
    check_names(ChatCompletionBody, {"my_trace": 1, "opensesame": 1})
    UnknownFieldLog(lambda name: name.replace("opensesame", "...")).write(take_unknown())
    assert [record.args for record in caplog.records] == [("my_trace",)]


NOT_MADE_INTO_A_GRAMMAR = {(ToolUseBlock, "input")}
"""Fields of a grammar's type that no grammar is made of: the arguments of an earlier call."""
VALIDATORS = [*Schema.__metadata__, *SchemaObject.__metadata__, *OptionalSchemaObject.__metadata__]
GRAMMAR_TYPES = [Grammar, Choices, ResponseFormat, StructuralTag, *VALIDATORS]


def paths_to_grammars(body: type[BaseModel], seen: tuple[type, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The names of fields, from the body inwards, that lead to each field of a grammar's type."""
    for name, annotation in get_type_hints(body, include_extras=True).items():
        if name not in body.model_fields or (body, name) in NOT_MADE_INTO_A_GRAMMAR:
            continue
        own = body.model_fields[name].alias or name
        for part in parts_of(annotation):
            if part in GRAMMAR_TYPES:
                yield (own,)
            elif isinstance(part, type) and issubclass(part, BaseModel) and part not in seen:
                yield from ((own, *inner) for inner in paths_to_grammars(part, (*seen, part)))


def parts_of(annotation: Any) -> Iterator[Any]:
    """A type, and all types and validators that it is made of."""
    yield annotation
    for part in get_args(annotation):  # of an annotated type its validators too
        yield from parts_of(part)


@pytest.mark.parametrize("path", BODIES)
def test_text_work_of_each_field_that_becomes_a_grammar_may_take_long(path: str) -> None:
    """The pool looks for their names in bodies that nobody has parsed yet."""
    for names in paths_to_grammars(BODIES[path]):
        assert any(may_take_long(b'{"%s": 1}' % name.encode()) for name in names), names


def test_the_fields_that_become_grammars_are_found() -> None:
    found = {names for body in BODIES.values() for names in paths_to_grammars(body)}
    first = {names[0] for names in found}
    assert first == {
        "guided_choice", "guided_grammar", "guided_json", "guided_regex", "output_config", "response_format",
        "structured_outputs", "text", "tools",
    }  # fmt: skip
    assert ("output_config", "format", "schema") in found
    unused = [name for name in GRAMMAR_FIELDS if not any(name in names for names in found)]
    assert unused == []


def test_a_whole_number_may_be_written_with_a_point(server: Served) -> None:
    """JSON Schema and vLLM take 5.0 for an integer; programs that compute a number of tokens send it."""
    numbers = {"max_tokens": 5.0, "n": 2.0, "seed": 7.0, "top_k": 3.0, "min_tokens": 1.0}
    numbers |= {"logprobs": True, "top_logprobs": 2.0}
    assert server.http.post(CHAT, json={**ASK, **numbers}).status_code == 200
    sampling = server.engine.requests[0].sampling
    found = [sampling.max_tokens, sampling.top_k, sampling.min_tokens, sampling.logprobs, len(server.engine.requests)]
    assert (found, set(map(type, found))) == ([5, 3, 1, 2, 2], {int})


def test_token_ids_may_be_written_with_a_point_too(server: Served) -> None:
    lists = {"stop_token_ids": [5.0, 6], "allowed_token_ids": [7.0], "logit_bias": {"7": 1}}
    for prompt, count in (([72.0, 105], 1), ([[72.0], [105, 3.0]], 2)):
        before = len(server.engine.requests)
        assert server.http.post("/v1/completions", json={"prompt": prompt, **lists}).status_code == 200
        made = server.engine.requests[before:]
        assert len(made) == count
        ids = [*made[-1].prompt_token_ids, *made[0].sampling.stop_token_ids, *made[0].sampling.allowed_token_ids]
        assert set(map(type, ids)) == {int}
    assert server.http.post("/detokenize", json={"tokens": [72.0]}).status_code == 200
