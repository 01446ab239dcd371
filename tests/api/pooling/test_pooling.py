"""Embeddings, scores and ranks in the shapes of OpenAI, vLLM and Jina, and requests that are refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import openai
import pytest

from octavo_engine.engine.info import ClassifierInfo
from octavo_engine.server.errors import APIError
from octavo_engine.server.pooling import prepare_pooled
from octavo_engine.server.preparation.loaded_model import LoadedModel
from tests.api.served import Served, write_keys

EMBED = "/v1/embeddings"


def vector_of(server: Served, text: str) -> list[float]:
    """The scripted engine's vector at length 1."""
    numbers = [3.0, 4.0 * sum(server.tokenizer.encode(text)), 0.0, 0.5]
    return [number / math.hypot(*numbers) for number in numbers]


def test_inputs_of_every_kind_by_the_sdk(server: Served) -> None:
    """The SDK asks for base64 and decodes it, unless floats are asked for."""
    ids = server.tokenizer.encode("Hi there")
    kinds: list[tuple[Any, int]] = [("Hi there", 1), (["Hi there", "x"], 2), (ids, 1), ([ids, [5]], 2)]
    for asked, count in kinds:
        answer = server.openai().embeddings.create(model="smollm2", input=asked)
        assert [each.index for each in answer.data] == list(range(count))
        assert answer.data[0].embedding == pytest.approx(vector_of(server, "Hi there"))
        assert (answer.object, answer.data[0].object, answer.model) == ("list", "embedding", "smollm2")
    floats = server.openai().embeddings.create(model="smollm2", input="Hi there", encoding_format="float")
    assert floats.data[0].embedding == pytest.approx(vector_of(server, "Hi there"))
    assert (floats.usage.prompt_tokens, floats.usage.total_tokens) == (len(ids), len(ids))
    assert {(each.pooled, each.sampling.max_tokens) for each in server.engine.requests} == {(True, 0)}
    server.wait_until(lambda: server.serving.admission.queued == 0 == server.serving.admission.begun)


def test_vectors_are_cut_and_brought_to_length_1(server: Served) -> None:
    cut = server.openai().embeddings.create(model="smollm2", input="Hi", dimensions=2).data[0].embedding
    whole = vector_of(server, "Hi")
    assert cut == pytest.approx([number / math.hypot(*whole[:2]) for number in whole[:2]])
    raw = server.http.post("/pooling", json={"input": [7], "normalize": False, "task": "embed"}).json()
    assert raw["data"] == [{"object": "pooling", "index": 0, "data": [3.0, 28.0, 0.0, 0.5]}]


def test_long_inputs_are_refused_or_cut(server: Served) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        server.openai().embeddings.create(model="smollm2", input=[5] * 513)
    assert caught.value.code == "context_length_exceeded"
    for keep, tokens in ((-1, 512), (3, 3)):
        for asked in ([*range(600)], "a b c d e " * 200):
            server.do(server.engine.requests.clear)
            server.http.post(EMBED, json={"input": asked, "truncate_prompt_tokens": keep}).raise_for_status()
            [request] = server.engine.requests
            first = asked if isinstance(asked, list) else server.tokenizer.encode(asked)
            assert list(request.prompt_token_ids) == first[:tokens]


BAD: dict[str, tuple[str, dict[str, Any], str]] = {
    "nothing": (EMBED, {}, "input"),
    "an empty text": (EMBED, {"input": ""}, "input"),
    "a number": (EMBED, {"input": 5}, "input"),
    "a token that there is not": (EMBED, {"input": [49152]}, "input"),
    "a chat": (EMBED, {"input": "x", "messages": []}, "messages"),
    "too many dimensions": (EMBED, {"input": "x", "dimensions": 5}, "dimensions"),
    "no dimensions": (EMBED, {"input": "x", "dimensions": 0}, "dimensions"),
    "an unknown format": (EMBED, {"input": "x", "encoding_format": "int8"}, "encoding_format"),
    "Jina's format": (EMBED, {"input": "x", "embedding_type": "base64"}, "embedding_type"),
    "cut, but not of length 1": (EMBED, {"input": "x", "dimensions": 2, "normalize": False}, "normalize"),
    "a vector for each token": ("/pooling", {"input": "x", "task": "token_embed"}, "task"),
    "a kind of text": (EMBED, {"input": "x", "input_type": "query"}, "input_type"),
    "the last tokens": (
        EMBED,
        {"input": "x", "truncate_prompt_tokens": 1, "truncation_side": "left"},
        "truncation_side",
    ),
    "one side alone": ("/v1/score", {"text_1": "x"}, "text_2"),
    "the other alone": ("/v1/score", {"documents": ["x"]}, "text_1"),
    "an empty first text": ("/v1/score", {"queries": "", "documents": ["x"]}, "queries"),
    "an empty second text": ("/v1/score", {"text_1": "x", "text_2": ["y", ""]}, "text_2"),
    "an empty query": ("/v1/rerank", {"query": "", "documents": ["x"]}, "query"),
    "sides that do not fit": ("/v1/score", {"text_1": ["x", "y"], "text_2": ["a", "b", "c"]}, "text_1"),
    "one side twice": ("/v1/score", {"text_1": "x", "queries": "y", "text_2": "z"}, "queries"),
    "no documents": ("/v1/rerank", {"query": "x", "documents": []}, "documents"),
    "a document that is no text": ("/v1/rerank", {"query": "x", "documents": [5]}, "documents[0]"),
}


@pytest.mark.parametrize(("path", "body", "param"), BAD.values(), ids=BAD)
def test_bad_requests_name_the_field(server: Served, path: str, body: dict[str, Any], param: str) -> None:
    answer = server.http.post(path, json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_scores_are_cosines(server: Served) -> None:
    def cosine(first: str, second: str) -> float:
        return sum(a * b for a, b in zip(vector_of(server, first), vector_of(server, second), strict=True))

    pairs = server.http.post("/v1/score", json={"text_1": ["a", "b"], "text_2": ["x y", "z"]}).json()
    assert [each["score"] for each in pairs["data"]] == pytest.approx([cosine("a", "x y"), cosine("b", "z")])
    assert [(each["index"], each["object"]) for each in pairs["data"]] == [(0, "score"), (1, "score")]
    for names in (("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2")):
        same = server.http.post("/score", json=dict(zip(names, (["a", "b"], ["x y", "z"]), strict=True))).json()
        assert same["data"] == pairs["data"]
    one = server.http.post("/score", json={"queries": "a", "documents": ["x y", "z"]}).json()
    assert [each["score"] for each in one["data"]] == pytest.approx([cosine("a", "x y"), cosine("a", "z")])
    assert one["usage"] == {"prompt_tokens": 4, "total_tokens": 4}


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
def test_documents_are_ranked(server: Served, path: str) -> None:
    """The scripted vectors of the same text are the most alike."""
    documents = ["!", "what is this", '"']
    body = {"model": "smollm2", "query": "what is this", "documents": documents, "top_n": 2}
    answer = server.http.post(path, json=body).json()
    first, second = answer["results"]
    assert (first["index"], first["document"]) == (1, {"text": "what is this"})
    assert first["relevance_score"] == pytest.approx(1) and second["relevance_score"] < first["relevance_score"]
    objects = {**body, "documents": [{"text": text} for text in documents]}
    assert server.http.post(path, json=objects).json()["results"] == answer["results"]
    bare = server.http.post(path, json={**body, "return_documents": False, "top_n": None}).json()
    assert sorted(result["index"] for result in bare["results"]) == [0, 1, 2]
    assert "document" not in bare["results"][0]


def test_a_model_that_pools_otherwise_is_refused_by_name(start: Any) -> None:
    from dataclasses import replace

    server = start()
    info = server.engine.state.ready
    embedding = replace(info.embedding, pooling="mean and max")
    server.do(lambda: setattr(server.engine.state, "ready", replace(info, embedding=embedding)))
    for path, body in ((EMBED, {"input": "x"}), ("/rerank", {"query": "x", "documents": ["y"]})):
        error = server.http.post(path, json=body).json()["error"]
        assert (error["param"], error["code"]) == ("model", "unsupported_parameter")
        assert "by mean and max" in error["message"]


def as_classifier(start: Any, *labels: str, activation: str = "softmax") -> Served:
    """A server whose model has these classes, and neither text nor vectors."""
    from dataclasses import replace

    server: Served = start()
    classifier = ClassifierInfo(labels=labels, activation=activation)  # type: ignore[arg-type]
    info = replace(server.engine.state.ready, generates=False, embedding=None, classifier=classifier)
    server.do(lambda: setattr(server.engine.state, "ready", info))
    return server


def test_classes_in_vllms_shape(start: Any) -> None:
    """The scripted engine's logits are 3, four times the sum of the tokens, 0, and one half."""
    server = as_classifier(start, "a", "b", "c", "d", activation="sigmoid")
    sigmoid = [1 / (1 + math.exp(-logit)) for logit in (3.0, 4 * 5.0, 0.0, 0.5)]
    for path in ("/classify", "/v1/classify"):
        answer = server.http.post(path, json={"model": "smollm2", "input": [[5], [0]]}).json()
        first, second = answer["data"]
        assert (first["index"], first["label"], first["num_classes"]) == (0, "b", 4)
        assert first["probs"] == pytest.approx(sigmoid) and (second["index"], second["label"]) == (1, "a")
        assert (answer["object"], answer["id"][:9], answer["usage"]["prompt_tokens"]) == ("list", "classify-", 2)
    raw = server.http.post("/classify", json={"input": [5], "use_activation": False}).json()
    assert raw["data"][0]["probs"] == [3.0, 20.0, 0.0, 0.5]
    server = as_classifier(start, "a", "b", "c", "d")
    probs = server.http.post("/classify", json={"input": [0]}).json()["data"][0]["probs"]
    total = math.exp(3) + 2 + math.exp(0.5)
    assert probs == pytest.approx([math.exp(3) / total, 1 / total, 1 / total, math.exp(0.5) / total])


def test_vectors_whose_answer_would_be_too_large_are_not_computed(start: Any, tmp_path: Path) -> None:
    """They were computed for a minute and then refused; as base64 they take a quarter of the bytes."""
    server = start(api_key_file=write_keys(tmp_path / "keys.yaml", "a", "b"))
    headers = {"Authorization": "Bearer sk-a"}
    server.serving.unread.total = 4 * 2000
    body = {"input": [[5]] * 13}
    refused = server.http.post(EMBED, json=body, headers=headers)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "answer_too_large")
    assert "base64 (encoding_format)" in refused.json()["error"]["message"] and not server.engine.requests
    assert server.http.post(EMBED, json={**body, "encoding_format": "base64"}, headers=headers).status_code == 200
    assert server.http.post(EMBED, json={"input": [[5]] * 12}, headers=headers).status_code == 200


def test_classes_are_bounded_in_number(start: Any) -> None:
    server = as_classifier(start, *map(str, range(1 << 16)))
    refused = server.http.post("/classify", json={"input": [[5]] * 33})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input")
    assert "33 lists of probabilities have 2162688 numbers" in refused.json()["error"]["message"]
    assert "in 2 requests" in refused.json()["error"]["message"]


def test_pairs_are_scored_together_by_a_model_with_one_class(start: Any) -> None:
    server = as_classifier(start, "only", activation="sigmoid")
    encode, score = server.tokenizer.encode, 1 / (1 + math.exp(-3.0))
    answer = server.http.post("/v1/score", json={"text_1": "a b", "text_2": ["c", "d e"]}).json()
    assert [each["score"] for each in answer["data"]] == pytest.approx([score, score])
    asked = [list(request.prompt_token_ids) for request in server.engine.requests]
    assert asked == [encode("a b") + encode("c"), encode("a b") + encode("d e")]
    server.do(server.engine.requests.clear)
    body = {"query": "a b", "documents": ["c d e f", "g"], "truncate_prompt_tokens": 3, "use_activation": False}
    answer = server.http.post("/rerank", json=body).json()
    assert [each["relevance_score"] for each in answer["results"]] == [3.0, 3.0]
    asked = [list(request.prompt_token_ids) for request in server.engine.requests]
    assert asked == [[*encode("a b"), encode("c d e f")[0]], encode("a b") + encode("g")]
    short = server.http.post("/rerank", json={**body, "truncate_prompt_tokens": 1}).json()["error"]
    assert short["param"] == "truncate_prompt_tokens" and "2 tokens" in short["message"]


def test_a_pair_that_is_too_long_is_refused_before_the_next_is_tokenized(start: Any) -> None:
    """A query of 40 KB was tokenized again with each of 2,048 documents, for 5 s and more, before it was refused."""
    server = as_classifier(start, "only")
    tokenizer = Mock(wraps=server.tokenizer, most_characters=None)
    model = LoadedModel(server.serving.model().info, tokenizer)
    body = {"query": "a " * model.info.max_model_len, "documents": ["b"] * 100}
    with pytest.raises(APIError, match="this model's maximum context length is"):
        prepare_pooled.rerank(model, json.dumps(body).encode())
    assert tokenizer.encode_pair.call_count == 1


def test_models_are_asked_for_what_they_give(start: Any) -> None:
    """Classes of a model without any, vectors or text of one that classifies, scores of one with several classes."""
    plain: Served = start()
    several = as_classifier(start, "a", "b")
    chat = {"messages": [{"role": "user", "content": "x"}]}
    for server, path, body, words in (
        (plain, "/classify", {"input": "x"}, "has no classes"),
        (several, EMBED, {"input": "x"}, "not embeddings"),
        (several, "/v1/rerank", {"query": "x", "documents": ["y"]}, "2 classes"),
        (several, "/v1/completions", {"prompt": "x"}, "does not generate"),
        (several, "/v1/chat/completions", chat, "does not generate"),
        (several, "/v1/responses", {"input": "x"}, "does not generate"),
    ):
        other = "'other' is not served here"
        for name, status, said in ((None, 400, words), ("smollm2", 400, words), ("other", 404, other)):
            answer = server.http.post(path, json={**body, "model": name})
            assert (answer.status_code, answer.json()["error"]["param"]) == (status, "model"), (path, name)
            assert said in answer.json()["error"]["message"], (path, name)
    scored = plain.http.post("/v1/score", json={"text_1": "x", "text_2": "y", "use_activation": False})
    assert scored.status_code == 400 and "gives embeddings" in scored.json()["error"]["message"]
    broken = several.http.post("/v1/completions", content=b"{", headers={"content-type": "application/json"})
    assert broken.status_code == 400 and "does not generate" in broken.text
    answer = several.http.post("/v1/messages", json={**chat, "max_tokens": 5, "model": "smollm2"})
    assert answer.status_code == 400 and "does not generate" in answer.text


def test_a_model_whose_vectors_say_nothing_is_not_ranked_by_them(start: Any) -> None:
    from dataclasses import replace

    server = start()
    info = server.engine.state.ready
    embedding = replace(info.embedding, why_no_ranks="Qwen3-Reranker is different")
    server.do(lambda: setattr(server.engine.state, "ready", replace(info, embedding=embedding)))
    for path, body in (("/v1/score", {"text_1": "x", "text_2": "y"}), ("/rerank", {"query": "x", "documents": ["y"]})):
        answer = server.http.post(path, json=body)
        assert answer.status_code == 400 and "Qwen3-Reranker" in answer.json()["error"]["message"]
    assert server.http.post(EMBED, json={"input": "x"}).status_code == 200
