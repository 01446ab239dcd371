"""Answers with drafts and masks: the same answers in fewer steps, and only allowed tokens.

Batches, preemptions, the prefix cache and graphs are in test_metamorphic.py, for answers with a grammar too; two ranks
are in test_tensor_parallel.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import transformers
from torch import Tensor

from octavo_engine import LLM, SamplingParams
from octavo_engine.config import EngineConfig
from octavo_engine.core.request import FinishReason
from octavo_engine.core.step import RequestOutput
from octavo_engine.engine.startup.sizing import size_engine
from octavo_engine.errors import ConfigurationError, NotAdmissibleError
from octavo_engine.llm import Completion
from octavo_engine.model.source import resolve_model
from octavo_engine.runner.executor import ThreadExecutor
from octavo_engine.structured.mask_provider import MaskRow, RowMasks
from tests.engine.helpers.pretended import PretendedMasks, PretendedProposer

SETTINGS: dict[str, Any] = {"device": "cpu", "dtype": "float32", "num_kv_blocks": 64, "max_model_len": 400}
GREEDY = SamplingParams(max_tokens=16, temperature=0.0, ignore_eos=True)
WAYS = [
    GREEDY,
    replace(GREEDY, logprobs=2),
    replace(GREEDY, temperature=1.0, seed=5),
    replace(GREEDY, temperature=0.9, top_p=0.8, top_k=20, min_p=0.01, seed=6, logprobs=1),
    replace(GREEDY, temperature=0.8, seed=7, repetition_penalty=1.2, frequency_penalty=0.3, presence_penalty=0.2),
    replace(GREEDY, logit_bias=((3, 4.0), (9, -5.0)), min_tokens=9, stop_token_ids=(3, 4, 5)),
]
PROMPTS = [[(7 * i + j) % 64 for j in range(3 + 9 * i)] for i in range(len(WAYS))]


@pytest.fixture
def llm(tiny_model: Path) -> Iterator[LLM]:
    loaded = LLM(str(tiny_model), **SETTINGS)
    yield loaded
    loaded.close()


def count_steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by the number of each step."""
    steps: list[int] = []
    forward = ThreadExecutor.forward
    monkeypatch.setattr(ThreadExecutor, "forward", lambda self, plan: (steps.append(plan.step), forward(self, plan))[1])
    return steps


def assert_alike(answers: Sequence[Completion], expected: Sequence[Completion]) -> None:
    assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in expected]
    assert [answer.finish_reason for answer in answers] == [answer.finish_reason for answer in expected]
    for answer, other in zip(answers, expected, strict=True):
        assert [each.token_id for each in answer.logprobs] == [each.token_id for each in other.logprobs]
        got, wanted = ([each.logprob for each in completion.logprobs] for completion in (answer, other))
        assert got == pytest.approx(wanted, abs=1e-4)


def test_drafts_change_no_answer_and_save_steps(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = count_steps(monkeypatch)
    expected = llm.generate(PROMPTS, WAYS)
    without = len(steps)
    texts = [prompt + answer.token_ids for prompt, answer in zip(PROMPTS, expected, strict=True)]
    proposer = PretendedProposer(texts)
    llm._loop._scheduler.proposer = proposer
    assert_alike(llm.generate(PROMPTS, WAYS), expected)
    assert proposer.proposed > 50
    assert len(steps) - without < without


def test_a_mask_allows_what_it_says_and_leaves_other_requests_alone(llm: LLM) -> None:
    free = llm.generate(PROMPTS, WAYS)
    masks = llm._loop.guided.provider = PretendedMasks()
    answers = llm.generate(PROMPTS, WAYS)
    assert_alike(answers[1::2], free[1::2])
    for answer in answers[::2]:
        assert len(answer.token_ids) == 16
        for place, token in enumerate(answer.token_ids):
            assert token in masks.allowed(place)
    assert [place for name, place, _ in masks.asked if name == masks.asked[0][0]] == list(range(16))
    biased = replace(GREEDY, logit_bias=tuple((token, 100.0) for token in masks.allowed(0)), max_tokens=1)
    again = llm.generate(PROMPTS[:1], biased)
    assert again[0].token_ids == answers[0].token_ids[:1], "the likeliest of those that are allowed"


def test_masks_and_drafts_together_give_what_masks_alone_do(llm: LLM) -> None:
    masks = llm._loop.guided.provider = PretendedMasks()
    expected = llm.generate(PROMPTS, WAYS)
    texts = [prompt + answer.token_ids for prompt, answer in zip(PROMPTS, expected, strict=True)]
    llm._loop._scheduler.proposer = PretendedProposer(texts)
    masks.asked.clear()
    assert_alike(llm.generate(PROMPTS, WAYS), expected)
    assert sum(drafts for *_, drafts in masks.asked) > 20


class BrokenMasks(PretendedMasks):
    """Fails one request at its third token."""

    def __init__(self, victim: str, *, raises: type[ValueError]) -> None:
        super().__init__()
        self._victim, self._raises = victim, raises

    def mask(self, request_id: str, answer: Sequence[int], drafts: Sequence[int]) -> Tensor:
        mask = super().mask(request_id, answer, drafts)
        if request_id == self._victim and len(answer) == 2:
            raise self._raises("a grammar with a defect")
        return mask


class MasksOfAnotherVocabulary(PretendedMasks):
    """Gives bits for half as many tokens as the model has."""

    def masks(self, rows: Sequence[MaskRow]) -> RowMasks:
        return RowMasks(super().masks(rows).bits[:, :1], {})


class Forgetful(PretendedMasks):
    """Cannot say whether it guides one request."""

    def __init__(self, victim: str) -> None:
        super().__init__()
        self._victim = victim

    def guides(self, request_id: str) -> bool:
        if request_id == self._victim:
            raise KeyError(request_id)
        return super().guides(request_id)


def test_a_provider_that_fails_for_a_request_ends_that_one_alone(llm: LLM) -> None:
    llm._loop.guided.provider = PretendedMasks()
    expected = llm.generate(PROMPTS, GREEDY)
    llm._loop.guided.provider = Forgetful(f"llm-{llm._count + 2}")
    answers = llm.generate(PROMPTS, GREEDY)
    assert [answer.finish_reason for answer in answers] == ["length", "length", "error", *["length"] * 3]
    assert "guided decoding failed" in str(answers[2].error)
    assert [a.token_ids for a in answers[:2] + answers[3:]] == [a.token_ids for a in expected[:2] + expected[3:]]


@pytest.mark.parametrize("raises", [ValueError, NotAdmissibleError])
def test_a_mask_that_fails_ends_its_request_alone(
    llm: LLM, raises: type[ValueError], monkeypatch: pytest.MonkeyPatch
) -> None:
    llm._loop.guided.provider = PretendedMasks()
    expected = llm.generate(PROMPTS, GREEDY)
    first = len(PROMPTS)
    llm._loop.guided.provider = BrokenMasks(f"llm-{first + 2}", raises=raises)
    abort, reasons = llm._loop._scheduler.abort, []

    def spied(request_id: str, reason: FinishReason, **more: Any) -> RequestOutput | None:
        reasons.append(reason)
        return abort(request_id, reason, **more)

    monkeypatch.setattr(llm._loop._scheduler, "abort", spied)
    answers = llm.generate(PROMPTS, GREEDY)
    assert reasons == [FinishReason.INVALID if raises is NotAdmissibleError else "error"]
    assert [answer.finish_reason for answer in answers] == ["length", "length", "error", *["length"] * 3]
    assert "a grammar with a defect" in str(answers[2].error)
    assert [a.token_ids for a in answers[:2] + answers[3:]] == [a.token_ids for a in expected[:2] + expected[3:]]


def test_masks_that_do_not_fit_the_model_end_the_guided_requests_alone(llm: LLM) -> None:
    expected = llm.generate(PROMPTS, WAYS)
    llm._loop.guided.provider = MasksOfAnotherVocabulary()
    answers = llm.generate(PROMPTS, WAYS)
    assert_alike(answers[1::2], expected[1::2])
    for answer in answers[::2]:
        assert answer.finish_reason == "error" and "must have 2 words" in str(answer.error)


LOOKUP = '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 3}'


def test_prompt_lookup_changes_no_answer_and_its_drafts_are_accepted(tiny_model: Path) -> None:
    """Answers of two tokens alone, some of them repeating what stood before."""
    ways = [replace(way, max_tokens=60, logit_bias=((3, 40.0), (9, 40.0))) for way in WAYS]
    answers, counted = [], []
    for config in (None, LOOKUP):
        loaded = LLM(str(tiny_model), speculative_config=config, **SETTINGS)
        answers.append(loaded.generate(PROMPTS, ways))
        stats = loaded.report()
        counted.append((stats.draft_tokens, stats.accepted_tokens))
        loaded.close()
    assert_alike(answers[1], answers[0])
    assert counted[0] == (0, 0)
    assert 20 < counted[1][1] < counted[1][0]


def test_the_memory_plan_counts_what_drafts_have_sampled() -> None:
    files = resolve_model("smollm2", None, lambda *_: None)

    def step_and_most(**settings: Any) -> tuple[int, int]:
        sizing = size_engine(EngineConfig(model="smollm2", device="cpu", max_num_seqs=16, **settings), files)
        return sizing.plan.need.step, sizing.resolved.max_sampled

    (without, few), (with_drafts, many) = step_and_most(), step_and_most(speculative_config=LOOKUP)
    assert (few, many) == (16, 16 * 5)
    assert with_drafts - without > 64 * 49152 * 4, "a line of logits each"
    assert step_and_most(speculative_config=LOOKUP, max_num_batched_tokens=20)[1] == 20


def test_a_model_with_recurrent_states_refuses_drafts(tmp_path: Path) -> None:
    transformers.Qwen3NextConfig(architectures=["Qwen3NextForCausalLM"]).save_pretrained(tmp_path)
    config = EngineConfig(model=str(tmp_path), device="cpu", speculative_config=LOOKUP)
    with pytest.raises(ConfigurationError, match="--speculative-config: this model has layers with a recurrent state"):
        size_engine(config, resolve_model(str(tmp_path), None, lambda *_: None, weights=False))
