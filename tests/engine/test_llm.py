"""Offline use: LLM, and `octavo-engine generate` with its file of prompts."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from octavo_engine import LLM, SamplingParams
from octavo_engine import llm as llm_module
from octavo_engine.cli import main
from octavo_engine.config import EngineConfig
from octavo_engine.core.step import RequestOutput
from octavo_engine.engine.startup import resolved_config, start_engine
from octavo_engine.errors import FORBIDDEN, ModelLoadError, NotAdmissibleError
from octavo_engine.llm import Completion, _Running
from octavo_engine.model_outputs import TokenLogprobs
from octavo_engine.request_checks import check_sampling
from octavo_engine.runner import worker
from octavo_engine.runner.sampling.sampler import Sampled
from octavo_engine.runner.sampling_table import SampledRows
from octavo_engine.runner.state_table import StateTable
from octavo_engine.text.detokenizer import Detokenizer

GREEDY = SamplingParams(max_tokens=12, temperature=0.0)
SETTINGS: dict[str, Any] = {"device": "cpu", "dtype": "float32", "num_kv_blocks": 64, "max_model_len": 400}


@pytest.fixture(scope="module")
def llm(tiny_model: Path) -> Iterator[LLM]:
    loaded = LLM(str(tiny_model), **SETTINGS)
    yield loaded
    loaded.close()


def test_answers_come_in_the_prompts_order_and_are_reported_as_they_end(llm: LLM) -> None:
    finished: list[int] = []
    each = [SamplingParams(max_tokens=n, temperature=0.0) for n in (9, 3, 6)]
    answers = llm.generate(["w1 w2", [3, 4], "w5"], each, on_finish=lambda index, _: finished.append(index))
    assert [len(answer.token_ids) for answer in answers] == [9, 3, 6]
    assert finished == [1, 2, 0]
    assert all(answer.finish_reason == "length" for answer in answers)


def test_a_prompt_that_cannot_be_answered_harms_no_other(llm: LLM) -> None:
    alone = llm.generate([[1, 2, 3]], GREEDY)[0]
    bad: list[Sequence[int]] = [[], [64], [-1], list(range(60)) * 7]
    answers = llm.generate([*bad, [1, 2, 3]], GREEDY)
    assert [answer.finish_reason for answer in answers] == ["error"] * 4 + ["length"]
    assert all(answer.error for answer in answers[:4])
    assert answers[4].token_ids == alone.token_ids


def test_what_does_not_fit_the_prompts_is_refused_before_any_is_computed(llm: LLM) -> None:
    with pytest.raises(TypeError, match="put a single prompt into a list"):
        llm.generate("w1 w2", GREEDY)
    for stop in ("w1", [""]):
        with pytest.raises(ValueError, match="none is empty: put a single one into a list"):
            llm.generate([[1]], GREEDY, stop=stop)
    with pytest.raises(TypeError, match="put a single list into a list"):
        llm.chat([{"role": "user", "content": "Hi"}], GREEDY)  # type: ignore[list-item]
    with pytest.raises(ValueError, match="2 prompts, 1 `sampling`, 2 `adapter`: give one"):
        llm.generate([[1], [2]], [GREEDY])
    assert not llm._loop.has_work


def test_prompts_of_an_interrupted_call_are_dropped(llm: LLM) -> None:
    def interrupt(_index: int, _answer: Completion) -> None:
        raise KeyboardInterrupt

    each = [SamplingParams(max_tokens=n, temperature=0.0) for n in (2, 200, 200)]
    with pytest.raises(KeyboardInterrupt):
        llm.generate([[1], [2], [3]], each, on_finish=interrupt)
    assert llm.report().running == 0
    assert len(llm.generate([[1, 2, 3]], GREEDY)[0].token_ids) == 12


def test_an_interrupt_within_a_step_waits_for_its_end(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its result is lost, and the loop takes each later result for that of the step before."""
    free, executor = llm.generate([[1, 2, 3]], GREEDY), llm._loop._executor
    result, handler = executor.result, signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupted() -> Any:
        found = result()
        signal.raise_signal(signal.SIGINT)
        return found

    monkeypatch.setattr(executor, "result", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate([[1], [2], [3]], GREEDY)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    monkeypatch.undo()
    signal.signal(signal.SIGINT, handler)
    assert llm.generate([[1, 2, 3]], GREEDY) == free


def test_a_stop_string_ends_an_answer_and_is_not_part_of_it(llm: LLM) -> None:
    free = llm.generate([[7]], GREEDY)[0]
    third = llm.tokenizer.decode(free.token_ids[2:3])
    stopped = llm.generate([[7]], GREEDY, stop=[third])[0]
    assert stopped.finish_reason == "stop"
    assert third not in stopped.text
    assert free.text.startswith(stopped.text)


def test_tokens_after_a_stop_string_are_no_part_of_an_answer(llm: LLM) -> None:
    """A step may give several tokens, of which the first may end the answer."""
    scores = tuple(TokenLogprobs(token, -1.0, 1, ()) for token in (5, 6, 7))
    detokenizer = Detokenizer(llm.tokenizer, stop=[llm.tokenizer.decode([6])])
    running = _Running(0, Completion([1]), detokenizer)
    assert llm._take(running, RequestOutput("none", (5, 6, 7), scores))
    assert (running.completion.token_ids, len(running.completion.logprobs)) == ([5, 6], 2)
    assert (running.completion.finish_reason, running.completion.stop_token) == ("stop", None)


def test_without_a_chat_template_a_conversation_is_refused(llm: LLM) -> None:
    with pytest.raises(ValueError, match="no chat template"):
        llm.chat([[{"role": "user", "content": "w1"}]], GREEDY)


NONSENSE: list[dict[str, Any]] = [
    {"temperature": -1.0},
    {"temperature": float("nan")},
    {"temperature": "hot"},
    {"top_p": 7},
    {"top_p": 0},
    {"top_k": 1.5},
    {"min_p": 2},
    {"repetition_penalty": 1e-40},
    {"logprobs": 10**9},
    {"seed": "x"},
    {"logit_bias": ((1, float("inf")),)},
    {"logit_bias": ((1, 100.0), (1, 100.0))},
    {"logit_bias": ((1,),)},
    {"logit_bias": 5},
    {"stop_token_ids": 5},
    {"allowed_token_ids": 5},
    {"bad_words_token_ids": ((),)},
    {"bad_words_token_ids": (5,)},
    {"min_tokens": "two"},
    {"ignore_eos": "no"},
]


@pytest.mark.parametrize("params", NONSENSE, ids=str)
def test_nonsense_is_refused_at_the_door_and_harms_no_other(params: dict[str, Any], llm: LLM) -> None:
    strange = SamplingParams(max_tokens=3, **params)
    with pytest.raises(NotAdmissibleError):
        check_sampling(strange)
    ended: list[int] = []
    answers = llm.generate([[1], [1, 2, 3]], [strange, GREEDY], on_finish=lambda index, _: ended.append(index))
    assert answers[0].finish_reason == "error" and answers[0].error
    assert ended == [0, 1]
    assert len(answers[1].token_ids) == 12


def test_what_is_no_list_of_tokens_is_refused() -> None:
    strange: Any = 5
    with pytest.raises(NotAdmissibleError, match="stop_token_ids"):
        check_sampling(SamplingParams(max_tokens=1, stop_token_ids=strange))


def poison(llm: LLM, monkeypatch: pytest.MonkeyPatch, row: int, step: int) -> None:
    """Let the model give NaN for one row of one step."""
    decoder = llm._loop._executor._worker._decoder  # type: ignore[attr-defined]
    real, calls = decoder.logits, [0]

    def logits(hidden: torch.Tensor, out: None = None) -> torch.Tensor:
        values: torch.Tensor = real(hidden)
        calls[0] += 1
        if calls[0] == step:
            values[row] = torch.nan
        return values

    monkeypatch.setattr(decoder, "logits", logits)


def test_logits_that_are_not_finite_end_their_request_alone(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = [[5, 6, 7], [8, 9], [10] * 20]
    alone = llm.generate(prompts, GREEDY)
    poison(llm, monkeypatch, row=1, step=4)
    answers = llm.generate(prompts, GREEDY)
    assert [answer.finish_reason for answer in answers] == ["length", "error", "length"]
    assert "finite" in str(answers[1].error)
    assert [answers[i].token_ids for i in (0, 2)] == [alone[i].token_ids for i in (0, 2)]


FORBIDDING: list[tuple[dict[str, Any], list[int]]] = [
    ({"bad_words_token_ids": ((7,),)}, [9, 9]),
    ({"bad_words_token_ids": ((7,), (9,))}, []),
    ({"min_tokens": 2, "stop_token_ids": (7,)}, [9, 9]),
    ({"min_tokens": 2, "stop_token_ids": (7, 9)}, []),
]


@pytest.mark.parametrize(("params", "tokens"), FORBIDDING, ids=str)
def test_a_request_that_forbids_all_tokens_itself_is_invalid_and_no_defect_of_the_model(
    llm: LLM, params: dict[str, Any], tokens: list[int]
) -> None:
    alone = llm.generate([[5, 6]], GREEDY)[0]
    steered = SamplingParams(max_tokens=2, allowed_token_ids=(7, 9), logprobs=1, **params)
    answers = llm.generate([[5, 6], [1]], [GREEDY, steered])
    assert answers[0].token_ids == alone.token_ids
    assert (answers[1].token_ids, answers[1].error) == (tokens, None if tokens else FORBIDDEN)


@pytest.mark.parametrize(
    ("kind", "says"), [(ValueError, "sampling failed: "), (torch.OutOfMemoryError, "tried again: ")]
)
def test_a_row_that_cannot_be_sampled_ends_alone(
    kind: type[Exception], says: str, llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    real: Callable[..., Sampled] = worker.sample

    def fragile(logits: torch.Tensor, sampled: SampledRows, table: StateTable) -> Sampled:
        if 666 in table.sampling.columns(sampled.rows_device).seeds:
            raise kind("an unforeseen defect")
        return real(logits, sampled, table)

    alone = llm.generate([[5, 6]], GREEDY)[0]
    monkeypatch.setattr(worker, "sample", fragile)
    cursed = SamplingParams(max_tokens=5, seed=666)
    answers = llm.generate([[5, 6], [1], [5, 6]], [GREEDY, cursed, GREEDY])
    assert [answer.finish_reason for answer in answers] == ["length", "error", "length"]
    assert f"{says}an unforeseen defect" in str(answers[1].error)
    assert answers[0].token_ids == answers[2].token_ids == alone.token_ids


def generate(tiny_model: Path, source: Path, target: Path) -> list[dict[str, Any]]:
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in SETTINGS.items()]
    assert main(["generate", str(tiny_model), f"--input={source}", f"--output={target}", *flags]) == 0
    return sorted(
        map(json.loads, target.read_text(encoding="utf-8").strip().split("\n")), key=lambda line: line["index"]
    )


def test_a_tokenizer_that_cannot_be_used_leaves_no_engine_behind(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llm_module, "start_engine", lambda *_: pytest.fail("an engine was started"))
    broken = shutil.copytree(tiny_model, tmp_path / "model")
    (broken / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json is broken"):
        LLM(str(broken), **SETTINGS)


def test_an_adapter_that_is_not_there_is_reported_before_the_weights_are_loaded(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_engine, "_load", lambda *_: pytest.fail("the weights are loaded"))
    with pytest.raises(ModelLoadError, match="--lora-modules sql: /nowhere: there is no such directory"):
        LLM(str(tiny_model), enable_lora=True, lora_modules=["sql=/nowhere"])


def test_generate_answers_every_line_and_bad_ones_with_an_error(tiny_model: Path, tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [
        {"id": "a", "prompt": [1, 2], "max_tokens": 4, "temperature": 0},
        {"prompt": [3], "max_tokens": 3, "stop_token_ids": [64]},
        {"prompt": "w1", "temperature": "hot"},
        {"prompt": ["w1"]},
        {"prompt": "w1", "stop": 5},
        {"prompt": "w1", "messages": []},
        {"promt": "w1"},
        {"messages": [{"role": "user", "content": "w1"}]},
        {"prompt": [1, 2], "max_tokens": 4, "temperature": 0},
        {"prompt": [1, 2], "max_tokens": 4, "logit_bias": {"5": 100}},
        {"prompt": [1], "logit_bias": {"5": 100, "05": 100}},
        {"prompt": [1], "logit_bias": [5]},
        {"prompt": [1], "logit_bias": {"5": 10**310}},
        {"prompt": [1], "stop_token_ids": None},
        {"prompt": [1], "stop_token_ids": 5},
        {"prompt": [1], "min_tokens": "3"},
        {"id": "\u2028", "prompt": [1, 2], "max_tokens": 1},
    ]
    others = ["no json", "[" * 100_000, '{"id": "\\ud800", "prompt": [1], "max_tokens": 1}']
    source.write_text("\n".join([json.dumps(line, ensure_ascii=False) for line in lines] + others), encoding="utf-8")
    answers = generate(tiny_model, source, target)
    assert [answer["index"] for answer in answers] == list(range(20))
    assert [answers[i]["id"] for i in (0, 16, 19)] == ["a", "\u2028", "\ud800"]
    assert answers[0]["usage"] == {"prompt_tokens": 2, "completion_tokens": 4, "total_tokens": 6}
    assert answers[0]["text"] == answers[8]["text"]
    assert all(answers[i].get("error") for i in (1, 2, 3, 4, 5, 6, 7, *range(10, 16), 17, 18))
    assert answers[6]["error"] == "line 7 has unknown keys: promt (did you mean prompt?)"
    assert answers[9]["text"] == " w5" * 4


def test_generate_writes_the_log_probabilities_that_were_asked_for(llm: LLM, tiny_model: Path, tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    params = SamplingParams(max_tokens=6, temperature=0.0, logprobs=2)
    [free] = llm.generate([[5, 6]], params)
    at = next(at for at, token in enumerate(free.token_ids) if token != free.token_ids[0])
    asked = {"prompt": [5, 6], "max_tokens": 6, "temperature": 0, "logprobs": 2}
    lines = [
        asked,
        {**asked, "stop_token_ids": [free.token_ids[at]]},
        {**asked, "logprobs": 0},
        {**asked, "logprobs": None},
    ]
    source.write_text("\n".join(json.dumps(line) for line in lines))
    whole, stopped, chosen, plain = generate(tiny_model, source, target)
    texts = [llm.tokenizer.token_text(token) for token in free.token_ids]
    assert whole["logprobs"]["tokens"] == texts
    assert whole["logprobs"]["token_logprobs"] == pytest.approx([each.logprob for each in free.logprobs], abs=1e-4)
    assert whole["logprobs"]["top_logprobs"] == [
        pytest.approx({llm.tokenizer.token_text(token): value for token, value in each.top}, abs=1e-4)
        for each in free.logprobs
    ]
    assert whole["logprobs"]["text_offset"] == [len("".join(texts[:i])) for i in range(6)]
    assert stopped["logprobs"]["tokens"] == texts[:at]  # the token that ended the answer is no part of its text
    assert [len(top) for top in chosen["logprobs"]["top_logprobs"]] == [1] * 6
    assert "logprobs" not in plain


def test_generate_goes_on_where_it_stopped(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [json.dumps({"prompt": [i], "max_tokens": 3, "temperature": 0}) for i in range(1, 6)]
    source.write_text("\n".join(lines))
    whole = generate(tiny_model, source, target)
    kept = target.read_text().splitlines()
    target.write_text(kept[0] + "\n" + kept[1] + "\n" + kept[2][:20])
    assert generate(tiny_model, source, target) == whole
    assert "2 answers are there, 3 to go" in capsys.readouterr().err
    before = target.read_text()
    generate(tiny_model, source, target)
    assert target.read_text() == before


def test_generate_never_writes_into_a_file_that_is_not_its_own(tiny_model: Path, tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "notes.txt"
    source.write_text(json.dumps({"prompt": [1]}))
    target.write_text("my notes\n")
    assert main(["generate", str(tiny_model), f"--input={source}", f"--output={target}"]) == 2
    assert target.read_text() == "my notes\n"


def test_most_requests_in_a_step_follow_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    for cores, most in ((1, 24), (2, 48), (64, 256)):
        monkeypatch.setattr(resolved_config, "usable_cores", lambda cores=cores: cores)
        assert resolved_config.choose_max_num_seqs(EngineConfig(model="x"), cpu) == most
        assert resolved_config.choose_max_num_seqs(EngineConfig(model="x"), cuda) == 256
        assert resolved_config.choose_max_num_seqs(EngineConfig(model="x", max_num_seqs=300), cpu) == 300
        assert resolved_config.choose_max_num_seqs(EngineConfig(model="x", max_num_batched_tokens=20), cuda) == 20


@pytest.mark.parametrize(
    ("set_already", "count"),
    [({}, "'1000'"), ({"GOMP_SPINCOUNT": "7"}, "'7'"), ({"OMP_WAIT_POLICY": "PASSIVE"}, "'0'")],
    ids=["by-us", "count", "policy"],
)
def test_threads_that_wait_sleep_soon_unless_the_user_says_otherwise(
    set_already: dict[str, str], count: str, tiny_model: Path, tmp_path: Path
) -> None:
    """OpenMP itself reports the setting when it is loaded: torch must be imported after it."""
    source = tmp_path / "in.jsonl"
    source.write_text('{"prompt": "w1", "max_tokens": 1}\n')
    command = [sys.executable, "-m", "octavo_engine.cli", "generate", str(tiny_model)]
    command += [f"--input={source}", f"--output={tmp_path / 'out.jsonl'}", "--device=cpu", "--num-kv-blocks=64"]
    kept = {name: value for name, value in os.environ.items() if name not in {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}}
    environ = {**kept, **set_already, "OMP_DISPLAY_ENV": "verbose"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    assert set(re.findall(r"GOMP_SPINCOUNT = (\S+)", done.stderr)) == {count}
