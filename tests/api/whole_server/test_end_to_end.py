"""`octavo-engine serve smollm2` as users start it: the real engine and the real model behind the real server."""

from __future__ import annotations

import json
import re
import runpy
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jsonschema
import openai
import psutil
import pytest

from octavo_engine.process_setup.openmp import SPIN_COUNT
from octavo_engine.text.tokenizer import Tokenizer
from tests.api.real_server import RealServer

ROOT = Path(__file__).parents[3]
QUESTION: list[Any] = [{"role": "user", "content": "Name the capital of France."}]
STORY: list[Any] = [{"role": "user", "content": "Tell me a short story about a fox and a crow."}]
GREEDY: dict[str, Any] = {"model": "smollm2", "temperature": 0}


def answer_to(server: RealServer, messages: list[Any], **options: Any) -> str:
    answer = server.openai.chat.completions.create(messages=messages, **{**GREEDY, "max_tokens": 24, **options})
    return answer.choices[0].message.content or ""


def test_threads_that_wait_sleep_soon(real: RealServer) -> None:
    """OpenMP reports the setting as the engine process loads it; process_setup/openmp.py has the reason for it."""
    assert set(re.findall(r"GOMP_SPINCOUNT = (\S+)", real.log.read_text())) == {f"'{SPIN_COUNT}'"}


def test_a_sensible_answer(real: RealServer) -> None:
    answer = real.openai.chat.completions.create(messages=QUESTION, **GREEDY)
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"


def test_streamed_equals_whole(real: RealServer) -> None:
    stream = real.openai.chat.completions.create(messages=STORY, stream=True, max_tokens=24, **GREEDY)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == answer_to(real, STORY)


def test_the_same_answers_in_a_batch_as_alone(real: RealServer) -> None:
    asked = [[{"role": "user", "content": f"Count from {start} upwards."}] for start in range(1, 7)]
    alone = [answer_to(real, messages, max_tokens=12) for messages in asked]
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(lambda messages: answer_to(real, messages, max_tokens=12), asked))
    assert together == alone
    assert len(set(alone)) > 1


def test_stop_string_in_the_middle_of_an_answer(real: RealServer) -> None:
    whole = answer_to(real, STORY)
    stop = whole[10:17]  # wherever tokens begin and end there
    assert answer_to(real, STORY, stop=stop) == whole[: whole.index(stop)]
    real.wait_until(lambda: real.metric("octavo_requests_running") == 0)


def test_logprobs_are_probabilities_and_greedy_takes_the_largest(real: RealServer, tokenizer: Tokenizer) -> None:
    answer = real.openai.chat.completions.create(messages=STORY, logprobs=True, top_logprobs=5, max_tokens=12, **GREEDY)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert (
        b"".join(bytes(entry.bytes or []) for entry in logprobs.content).decode() == answer.choices[0].message.content
    )
    for entry in logprobs.content:
        assert len(entry.top_logprobs) == 5
        assert entry.logprob == max(top.logprob for top in entry.top_logprobs) <= 0


def test_seeds_repeat_and_choices_differ(real: RealServer) -> None:
    def ask() -> list[str | None]:
        answer = real.openai.chat.completions.create(
            model="smollm2", messages=STORY, temperature=1.0, seed=5, n=3, max_tokens=16
        )
        return [choice.message.content for choice in answer.choices]

    first = ask()
    assert ask() == first
    assert len(set(first)) == 3


def test_answers_follow_a_schema_whatever_is_drawn(real: RealServer) -> None:
    """Streamed and whole, with choices, at a temperature at which the model says anything; others stay free."""
    properties = {"city": {"type": "string", "maxLength": 20}, "big": {"type": "boolean"}, "country": {"enum": ["FR"]}}
    schema = {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
    form: Any = {"type": "json_schema", "json_schema": {"name": "city", "schema": schema, "strict": True}}
    drawn: dict[str, Any] = {"model": "smollm2", "temperature": 1.5, "max_tokens": 100, "seed": 1}
    with ThreadPoolExecutor(1) as pool:
        free = pool.submit(answer_to, real, STORY, max_tokens=24)
        whole = real.openai.chat.completions.create(messages=QUESTION, response_format=form, n=3, **drawn)
        stream = real.openai.chat.completions.create(messages=QUESTION, response_format=form, stream=True, **drawn)
        streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    texts = [streamed, *(choice.message.content or "" for choice in whole.choices)]
    for text in texts:
        jsonschema.validate(json.loads(text), schema)
    assert [choice.finish_reason for choice in whole.choices] == ["stop"] * 3
    assert len(set(texts)) > 1
    assert free.result() == answer_to(real, STORY, max_tokens=24)


def test_a_demanded_call_is_written_as_the_prompt_asks(real: RealServer) -> None:
    """A small model gives the right arguments only in the format that its prompt describes."""
    parameters: Any = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
    }
    function = {"name": "Person", "description": "A person.", "parameters": parameters}
    tool: Any = {"type": "function", "function": function}
    asked: Any = {
        "messages": [{"role": "user", "content": "Anna is 31 years old. Who is she?"}],
        "tools": [tool],
        "tool_choice": {"type": "function", "function": {"name": "Person"}},
        "max_tokens": 100,
        **GREEDY,
    }
    [choice] = real.openai.chat.completions.create(**asked).choices
    [call] = choice.message.tool_calls or []
    assert json.loads(call.function.arguments) == {"name": "Anna", "age": 31}
    assert (call.function.name, choice.finish_reason, choice.message.content) == ("Person", "stop", None)
    chunks = real.openai.chat.completions.create(**asked, stream=True)
    pieces = [each for chunk in chunks for each in chunk.choices[0].delta.tool_calls or ()]
    assert "".join(each.function.arguments for each in pieces) == call.function.arguments and len(pieces) > 3


def test_completions_of_text_and_of_its_tokens_agree(real: RealServer, tokenizer: Tokenizer) -> None:
    text = "Once upon a time"
    create = real.openai.completions.create
    ids = real.http.post("/tokenize", json={"prompt": text}).json()["tokens"]
    assert ids == tokenizer.encode(text)
    both = create(prompt=text, max_tokens=8, **GREEDY), create(prompt=ids, max_tokens=8, **GREEDY)
    assert both[0].choices[0].text == both[1].choices[0].text != ""


def test_a_prompt_seen_before_comes_from_the_cache(real: RealServer) -> None:
    messages = [{"role": "user", "content": "This sentence is long enough to fill several blocks of the cache. " * 4}]
    usages = [
        real.openai.chat.completions.create(messages=messages, max_tokens=1, **GREEDY).usage  # type: ignore[arg-type]
        for _ in range(2)
    ]
    cached = [usage.prompt_tokens_details.cached_tokens for usage in usages if usage and usage.prompt_tokens_details]
    assert cached[0] < 48 <= cached[1]


def test_leaving_frees_everything(real: RealServer) -> None:
    body = {"messages": STORY, "stream": True, "ignore_eos": True, "max_tokens": 900}
    with real.http.stream("POST", "/v1/chat/completions", json=body) as answer:
        assert "data: " in next(answer.iter_lines())
    real.wait_until(
        lambda: real.metric("octavo_requests_running") == 0 and real.metric("octavo_kv_cache_usage_ratio") == 0
    )
    assert real.metric("octavo_requests_waiting") == 0


def test_a_request_that_runs_out_of_time(real: RealServer) -> None:
    with pytest.raises(openai.InternalServerError) as caught:
        real.openai.completions.create(
            prompt="x", max_tokens=900, extra_body={"ignore_eos": True, "timeout": 0.3}, **GREEDY
        )
    assert caught.value.code in ("deadline_exceeded", "queue_timeout")


def test_engine_killed_mid_stream(tmp_path: Path) -> None:
    server = RealServer(tmp_path / "log")
    try:
        server.wait_until(server.is_ready)
        body = {"messages": STORY, "stream": True, "ignore_eos": True, "max_tokens": 900}
        with server.http.stream("POST", "/v1/chat/completions", json=body) as answer:
            lines = answer.iter_lines()
            assert next(lines).startswith("data: ")
            [engine] = [
                child
                for child in psutil.Process(server.process.pid).children()
                if "octavo_engine.engine.process" in child.cmdline()
            ]
            engine.kill()
            rest = [line for line in lines if line]
        assert rest[-2] == "event: error"
        assert json.loads(rest[-1].removeprefix("data: "))["error"]["code"] == "engine_dead"
        assert server.process.wait(120) == 5
        log = server.log.read_text()
        assert "Traceback" not in log
        assert log.count("the engine process was killed by SIGKILL") == 1
    finally:
        server.process.kill()
        server.process.wait()


def test_prompts_are_scored_and_embedded(real: RealServer) -> None:
    """Scoring is as lm-eval asks: an entry for each token, and the likelier of two continuations has the larger sum."""
    context = real.http.post("/tokenize", json={"prompt": "The capital of France is"}).json()["tokens"]
    choices = [real.http.post("/tokenize", json={"prompt": text}).json()["tokens"] for text in (" Paris", " cheese")]
    prompts = [context + choice for choice in choices]
    answer = real.openai.completions.create(prompt=prompts, echo=True, logprobs=1, max_tokens=1, **GREEDY)
    sums = []
    for choice, prompt in zip(answer.choices, prompts, strict=True):
        assert choice.logprobs is not None and choice.logprobs.token_logprobs is not None
        assert len(choice.logprobs.token_logprobs) == len(prompt) + 1
        sums.append(sum(choice.logprobs.token_logprobs[len(context) : -1]))
    assert sums[0] > sums[1]
    texts = ["Paris is the capital of France.", "I like cheese."]
    vectors = [each.embedding for each in real.openai.embeddings.create(model="smollm2", input=texts).data]
    assert all(abs(sum(number * number for number in vector) - 1) < 1e-4 for vector in vectors)
    pair = real.http.post("/v1/score", json={"text_1": texts[0], "text_2": texts[1]}).json()
    expected = sum(first * second for first, second in zip(*vectors, strict=True))
    assert abs(pair["data"][0]["score"] - expected) < 1e-4


EXAMPLES = {
    "chat": "Paris",
    "streaming": r"\d+ prompt tokens, \d+ tokens answered",
    "tools": r'the model calls temperature\(\{\s*"city": ?"Paris"\s*\}\)\n.+',
    "structured_output": r'"vegetarian": (true|false)',
    "search": "nearest passage: A reader may borrow up to five books",
    "batch": r"the batch is completed: .*completed=3.*\n(\w+: .+\s*)+",
}


def test_every_example_is_run() -> None:
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == {*EXAMPLES, "endpoint"}


@pytest.mark.parametrize(("name", "output"), EXAMPLES.items(), ids=EXAMPLES)
def test_an_example_works(
    real: RealServer, name: str, output: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", f"{real.url}/v1")
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    runpy.run_path(str(ROOT / "examples" / f"{name}.py"))
    assert re.search(output, capsys.readouterr().out)
