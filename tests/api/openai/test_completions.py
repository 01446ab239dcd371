"""/v1/completions: prompts of every kind, echo, log probabilities as parallel lists."""

from __future__ import annotations

from typing import Any

import pytest

from octavo_engine.model_outputs import TokenLogprobs
from octavo_engine.text.logprobs import prompt_text_logprobs
from tests.api.openai.test_chat import events
from tests.api.served import Served


def test_whole_answer(server: Served) -> None:
    answer = server.openai().completions.create(model="smollm2", prompt="Say hello")
    assert (answer.object, answer.choices[0].text, answer.choices[0].finish_reason) == (
        "text_completion", "Hello there.", "stop",
    )  # fmt: skip
    assert answer.id.startswith("cmpl-")
    assert list(server.engine.requests[0].prompt_token_ids) == server.tokenizer.encode("Say hello")
    assert server.engine.requests[0].sampling.max_tokens == 16


def test_order_and_shape_of_chunks(server: Served) -> None:
    *chunks, usage, done = events(server, "/v1/completions", prompt="Hi", stream_options={"include_usage": True})
    assert done == "[DONE]"
    assert [(c["choices"][0]["text"], c["choices"][0]["finish_reason"]) for c in chunks] == [
        ("Hello", None), (" there", None), (".", None), ("", "stop"),
    ]  # fmt: skip
    assert {chunk["object"] for chunk in [*chunks, usage]} == {"text_completion"}
    assert (usage["choices"], usage["usage"]["total_tokens"]) == ([], 5)


def test_choices_are_ordered_by_prompt_and_each_prompt_counts_once(server: Served) -> None:
    answer = server.openai().completions.create(model="smollm2", prompt=["a b", "c"], n=2, echo=True)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert [choice.text[:3] for choice in answer.choices] == ["a b", "a b", "cHe", "cHe"]
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 16)


@pytest.mark.parametrize(
    ("prompt", "expected"), [([5, 6, 7], [[5, 6, 7]]), ([[5], [6, 7]], [[5], [6, 7]]), (["Hi"], None)]
)
def test_prompts_of_every_kind(server: Served, prompt: Any, expected: list[list[int]] | None) -> None:
    server.openai().completions.create(model="smollm2", prompt=prompt)
    given = [list(request.prompt_token_ids) for request in server.engine.requests]
    assert sorted(given) == (expected or [server.tokenizer.encode("Hi")])


def test_echo_of_token_ids_and_of_a_stream(server: Served) -> None:
    ids = server.tokenizer.encode("once more")
    answer = server.openai().completions.create(model="smollm2", prompt=ids, echo=True)
    assert answer.choices[0].text == "once moreHello there."
    *chunks, _ = events(server, "/v1/completions", prompt="once more", echo=True)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "once moreHello there."


def test_logprobs_are_parallel_lists(server: Served) -> None:
    answer = server.openai().completions.create(model="smollm2", prompt="Hi", logprobs=1)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == ["Hello", " there", "."]
    assert logprobs.token_logprobs == [-1.5, -1.5, -1.5]
    assert logprobs.text_offset == [0, 5, 11]
    likeliest = server.tokenizer.token_text(100)
    assert logprobs.top_logprobs is not None
    assert logprobs.top_logprobs[0] == {likeliest: -0.25, "Hello": -1.5}  # the sampled token is there, too


def test_logprobs_of_a_stream_continue_their_offsets(server: Served) -> None:
    *chunks, _ = events(server, "/v1/completions", prompt="Hi", logprobs=0)
    offsets = [offset for c in chunks for offset in (c["choices"][0]["logprobs"] or {}).get("text_offset", [])]
    assert offsets == [0, 5, 11]


def test_special_tokens_are_a_part_of_an_echo_and_not_of_an_answer(server: Served) -> None:
    """The positions are those in the text, which has the special tokens of a prompt, but not those of an answer."""
    start, once, more = (server.tokenizer.encode(text)[0] for text in ("<|im_start|>", "once", " more"))
    server.play(tokens=[once, start, more])
    asked = {"model": "smollm2", "logprobs": 0, "max_tokens": 3}
    for prompt in ([start, once], "<|im_start|>once"):
        [choice] = server.openai().completions.create(prompt=prompt, echo=True, **asked).choices
        assert choice.text == "<|im_start|>onceonce more"
        assert choice.logprobs is not None
        assert choice.logprobs.text_offset == [0, 12, 16, 20, 20]
    [plain] = server.openai().completions.create(prompt="a", extra_body={"skip_special_tokens": False}, **asked).choices
    assert plain.text == "once<|im_start|> more"
    assert plain.logprobs is not None and plain.logprobs.text_offset == [0, 4, 16]
    added = prompt_text_logprobs("once", start, [TokenLogprobs(once, -1.5, 1, ())], server.tokenizer, 0)
    assert added.text_offset == [0, 0]  # the tokenizer has put it before the text
    begun = server.tokenizer.token_text(start)
    both = [TokenLogprobs(start, -1.5, 1, ()), TokenLogprobs(once, -1.5, 1, ())]
    doubled = prompt_text_logprobs(f"{begun}once", start, both, server.tokenizer, 0)
    assert doubled.text_offset == [0, 0, len(begun)]  # also before a text that begins with it


def test_an_echo_is_scored_as_lm_eval_asks(server: Served) -> None:
    """Token ids in; all parallel lists have an entry for each token, null at the first; the engine's end counts too."""
    ids, first = server.tokenizer.encode("once more"), server.tokenizer.token_text(100)
    asked: dict[str, Any] = {"model": "smollm2", "prompt": [ids, ids[:1]], "echo": True, "logprobs": 1, "seed": 1234}
    server.play(tokens=[])  # the next token is the end of the text
    for max_tokens in (0, 1):
        answer = server.openai().completions.create(max_tokens=max_tokens, temperature=0, **asked)
        choice, short = answer.choices
        assert (choice.text, choice.finish_reason) == ("once more", ("length", "stop")[max_tokens])
        assert choice.logprobs is not None and short.logprobs is not None
        assert choice.logprobs.tokens == ["once", " more", "<|im_end|>"][: 2 + max_tokens]
        assert choice.logprobs.token_logprobs == [None, -1.5, -1.5][: 2 + max_tokens]
        assert choice.logprobs.text_offset == [0, 4, 9][: 2 + max_tokens]
        assert choice.logprobs.top_logprobs is not None
        assert choice.logprobs.top_logprobs[:2] == [None, {first: -0.25, " more": -1.5}]
        assert (short.logprobs.tokens[0], short.logprobs.token_logprobs) == ("once", [None, -1.5][: 1 + max_tokens])
        assert answer.usage is not None
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 2 * max_tokens)
    assert {request.sampling.prompt_logprobs for request in server.engine.requests} == {1}
    server.wait_until(lambda: server.serving.admission.queued == 0 == server.serving.admission.begun)


def test_a_scored_echo_comes_first_in_a_stream(server: Served) -> None:
    *chunks, _ = events(server, "/v1/completions", prompt="once more", echo=True, logprobs=0, n=2)
    for index in (0, 1):
        mine = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert "".join(choice["text"] for choice in mine) == "once moreHello there."
        offsets = [offset for choice in mine for offset in (choice["logprobs"] or {}).get("text_offset", [])]
        assert offsets == [0, 4, 9, 14, 20, 21]
        assert mine[0]["logprobs"]["token_logprobs"] == [None, -1.5]


def test_prompt_logprobs_have_vllms_shape(server: Served) -> None:
    expected = [
        None,
        {"510": {"logprob": -1.5, "rank": 2, "decoded_token": server.tokenizer.token_text(510)}}
        | {"100": {"logprob": -0.25, "rank": 1, "decoded_token": server.tokenizer.token_text(100)}},
    ]
    body = {"prompt": [[5, 510], [6]], "prompt_logprobs": 1, "echo": True, "logprobs": 0}
    first, second = server.http.post("/v1/completions", json=body).json()["choices"]
    assert (first["prompt_logprobs"], second["prompt_logprobs"]) == (expected, [None])
    assert set(first["logprobs"]["top_logprobs"][1]) == {server.tokenizer.token_text(510)}
    chat = {"messages": [{"role": "user", "content": "Hi"}], "prompt_logprobs": 1}
    answer = server.http.post("/v1/chat/completions", json=chat).json()
    assert len(answer["prompt_logprobs"]) == answer["usage"]["prompt_tokens"]
    assert answer["prompt_logprobs"][0] is None
    assert "prompt_logprobs" not in server.http.post("/v1/completions", json={"prompt": "a"}).json()["choices"][0]


def test_default_length_shrinks_to_the_room_there_is(server: Served) -> None:
    server.openai().completions.create(model="smollm2", prompt=[5] * 505)
    assert server.engine.requests[0].sampling.max_tokens == 7


def test_tokenize_and_detokenize(server: Served) -> None:
    answer = server.http.post("/tokenize", json={"prompt": "Hello there.", "return_token_strs": True}).json()
    ids = server.tokenizer.encode("Hello there.")
    assert answer == {"count": 3, "max_model_len": 512, "tokens": ids, "token_strs": ["Hello", " there", "."]}
    assert server.http.post("/detokenize", json={"tokens": ids}).json() == {"prompt": "Hello there."}


def test_tokenize_a_chat(server: Served) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    answer = server.http.post("/tokenize", json=body).json()
    server.http.post("/v1/chat/completions", json=body)
    assert answer["tokens"] == list(server.engine.requests[0].prompt_token_ids)


def test_models(server: Served) -> None:
    client = server.openai()
    [model] = client.models.list().data
    assert (model.id, model.object, model.model_extra["max_model_len"]) == ("smollm2", "model", 512)  # type: ignore[index]
    assert model.model_extra["default_sampling_params"]["temperature"] == 1.0  # type: ignore[index]
    assert client.models.retrieve("smollm2").id == "smollm2"


def test_aliases(start: Any) -> None:
    server = start(served_model_name=["main", "org/alias"])
    server.play("Hi")
    client = server.openai()
    assert [model.id for model in client.models.list().data] == ["main", "org/alias"]
    assert client.models.retrieve("org/alias").id == "org/alias"
    assert client.completions.create(model="org/alias", prompt="x").model == "org/alias"


def test_version(server: Served) -> None:
    assert server.http.get("/version").json() == {"version": "0.1.0"}
