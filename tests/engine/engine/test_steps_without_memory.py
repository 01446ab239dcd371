"""Fault 6: a step without memory on the device. Requests end that have none alone; others get the same tokens."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from family_pairs import make_pair
from test_loop import SETTINGS, ask

from octavo_engine.config import EngineConfig
from octavo_engine.core.step import Chunk, StepPlan
from octavo_engine.engine.startup.start_engine import start_engine
from octavo_engine.runner.out_of_memory import as_out_of_memory
from octavo_engine.runner.step_parts import compute_in_parts
from octavo_engine.sampling_params import SamplingParams

GREEDY = SamplingParams(max_tokens=9, temperature=0.0)
LOOKUP = '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 3}'
ERROR = (
    "CUDA out of memory. Tried to allocate 2.00 MiB. GPU 0 has a total capacity of 7.79 GiB of which 1.06 MiB is free. "
    "Including non-PyTorch memory, this process has 7.78 GiB memory in use. Of the allocated memory 7.2 GiB is in use."
)
START = [random.Random(8).randrange(64) for _ in range(53)]
"""The beginning of all prompts: three blocks that a request which comes a step later finds in the prefix cache."""
ASKED = {
    "culprit": ([*START, 1, 2], GREEDY),
    "greedy": ([*START, 3, *START], GREEDY),
    "drawn": ([*START, 4], replace(GREEDY, temperature=1.0, seed=3, repetition_penalty=1.2, logprobs=1)),
    "scored": ([*START[:30], 5], replace(GREEDY, prompt_logprobs=1)),
    "short": ([6, 7], replace(GREEDY, temperature=1.0, seed=4)),
}


Asked = dict[str, tuple[list[int], SamplingParams]]
Answers = dict[str, tuple[list[int], list[float], list[str]]]
"""Each request's tokens, the log probabilities of its prompt, and its ends."""


class Faulty:
    """A loop whose steps fail for lack of memory, before or after the layers have written their KV blocks."""

    def __init__(self, model: Path, **settings: Any) -> None:
        config = {"model": str(model), "num_kv_blocks": 64, "max_num_batched_tokens": 40, **SETTINGS, **settings}
        self.loop = start_engine(EngineConfig(**config), lambda *_: None)
        self.fails: Callable[[list[str]], bool] = lambda _: False
        """Whether an attempt to compute these requests fails."""
        self.fails_before = False
        self.error: Exception = torch.OutOfMemoryError(ERROR)
        self.losses: Counter[str] = Counter()
        """How often an attempt of each request failed, of those since it began (again) only the first."""
        self._begun: set[str] = set()
        self.errors: list[str] = []
        """The errors of requests that ended, in the order of their ends."""
        self.alone = {name: self.answers({name: asked}, name)[name] for name, asked in ASKED.items()}
        """The answer that each request gets by itself, without the prefix cache."""
        self._failing = False
        worker = self.loop._executor._worker  # type: ignore[attr-defined]
        self.vocabulary = worker._decoder.spec.vocab_size
        computed = worker._computed

        def compute(plan: StepPlan, *args: Any) -> Any:
            names = [worker._table.request_id(row) for row in (*plan.decode_rows, *(c.row for c in plan.chunks))]
            self._failing = self.fails(names)
            self._begun |= {new.request_id for new in plan.new_rows}
            if self._failing:
                self.losses.update(self._begun & set(names))
                self._begun -= set(names)
            return computed(plan, *args)

        worker._computed = compute
        worker._decoder.register_forward_pre_hook(lambda *_: self._fail(before=True))
        worker._decoder.register_forward_hook(lambda *_: self._fail(before=False))

    def _fail(self, *, before: bool) -> None:
        if self._failing and before == self.fails_before:
            raise self.error

    def fail_at(self, attempts: range) -> None:
        """Have the attempts with these numbers fail, counted from now on."""
        count = iter(range(1000))
        self.fails = lambda _: next(count) in attempts

    def answers(self, asked: Asked, salt: str = "", **kwargs: Any) -> Answers:
        """Ask for one more in each turn of the loop. In the end no block is used, and no request is left."""
        waiting, loop = list(asked.items()), self.loop
        said: Answers = {name: ([], [], []) for name in asked}
        while waiting or loop.has_work:
            if waiting:
                name, (prompt, params) = waiting.pop(0)
                fork_of = kwargs.get("fork_of")
                ask(loop, name, prompt, params, fork_of=None if name == fork_of else fork_of, cache_salt=salt)
            for output in loop.step().each():
                tokens, scores, ends = said[output.request_id]
                tokens.extend(output.token_ids)
                scores.extend(round(each.logprob, 3) for each in output.prompt.logprobs) if output.prompt else None
                ends.extend([output.finish_reason] if output.finish_reason else [])
                self.errors.extend([output.error] if output.error else [])
        loop.check_integrity()
        assert loop.report().kv_blocks_used == 0
        return said

    def check(self, said: Answers) -> None:
        """Only requests that were lost twice ended; all others got what they get alone."""
        for name, answer in said.items():
            assert answer == self.alone[name] or (self.losses[name] > 1 and answer[2] == ["memory"])


@pytest.fixture(scope="module")
def engine(tiny_model: Path) -> Iterator[Faulty]:
    faulty = Faulty(tiny_model, speculative_config=LOOKUP)
    yield faulty
    faulty.loop.close()


@pytest.mark.parametrize("before", [True, False])
def test_a_request_without_memory_ends_alone(before: bool, engine: Faulty, caplog: pytest.LogCaptureFixture) -> None:
    """Those that came a step later have its prefix, whose blocks were not computed."""
    engine.fails_before, engine.fails = before, lambda names: "culprit" in names
    said = engine.answers(ASKED, f"always {before}")
    assert said.pop("culprit") == ([], [], ["memory"])
    assert said == {name: answer for name, answer in engine.alone.items() if name != "culprit"}
    sizes = ERROR.partition(". Including")[0]
    assert f"when it was tried again: {sizes}; if that happens often, lower --gpu" in engine.errors[-1]
    assert f"of the requests culprit: {sizes}" in caplog.text
    engine.fails = lambda _: False
    assert engine.answers(ASKED, f"always {before}") == engine.alone, "the prefix cache has blocks of the culprit"


@pytest.mark.parametrize(
    ("times", "before"), [(1, False), (2, False), (2, True), (3, True)], ids=["again", "in parts", "begun", "later"]
)
def test_a_moment_without_memory_costs_no_request_anything(times: int, before: bool, engine: Faulty) -> None:
    """Once, the step is computed again. Twice, in parts. A request that is lost alone is computed later."""
    engine.fails_before = before
    for first in (0, 2, 5):
        engine.fail_at(range(first, first + times))
        assert engine.answers(ASKED, f"{first} {times} {before}") == engine.alone


@pytest.mark.parametrize("times", [1, 2])
def test_without_room_for_the_logits_of_all_parts_a_step_is_not_halved(
    times: int, engine: Faulty, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second attempt needs no room for them. If it fails, all requests of the step are computed later."""
    zeros = torch.zeros

    def no_room(*size: Any, **kwargs: Any) -> torch.Tensor:
        if isinstance(size[0], tuple) and size[0][1:] == (engine.vocabulary,):
            raise torch.OutOfMemoryError(ERROR)
        return zeros(*size, **kwargs)

    monkeypatch.setattr(torch, "zeros", no_room)
    engine.fail_at(range(2, 2 + times))
    assert engine.answers(ASKED, f"logits {times}") == engine.alone


def allocate_on_cpu() -> None:
    torch.empty(1 << 60, dtype=torch.uint8, device="cpu")


def allocate_by_numpy() -> None:
    np.empty(1 << 60, dtype=np.uint8)


@pytest.mark.parametrize("allocate", [allocate_on_cpu, allocate_by_numpy])
def test_a_cpu_without_memory_costs_what_a_gpu_without_costs(
    allocate: Callable[[], None], engine: Faulty, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch raises RuntimeError there, numpy MemoryError. Other errors of these classes end the engine."""
    with pytest.raises(Exception, match="allocate") as raised:
        allocate()
    monkeypatch.setattr(engine, "error", raised.value)
    engine.fails_before, engine.fails = True, lambda names: "culprit" in names
    said = engine.answers({name: ASKED[name] for name in ("culprit", "short")}, allocate.__name__)
    assert said == {"culprit": ([], [], ["memory"]), "short": engine.alone["short"]}
    assert re.search("(?i)tried again: .*allocate .*; if that", engine.errors[-1])
    with pytest.raises(torch.OutOfMemoryError) as found, as_out_of_memory():
        allocate()
    cause = found.value.__context__
    assert cause is not None and cause.__traceback__ is None  # its frames would keep the attempt's memory
    with pytest.raises(RuntimeError, match="another") as other, as_out_of_memory():
        raise RuntimeError("another")
    assert other.type is RuntimeError


def test_choices_do_not_share_what_was_not_computed(engine: Faulty) -> None:
    params = {f"n{number}": replace(GREEDY, temperature=1.0, seed=number) for number in range(3)}
    asked = {name: (START, each) for name, each in params.items()}
    engine.fails = lambda _: False
    expected = engine.answers(asked, "choices")
    engine.fails_before, engine.fails = True, lambda names: "n0" in names
    said = engine.answers(asked, "choices again", fork_of="n0")
    assert said == expected | {"n0": ([], [], ["memory"])}


def test_without_memory_for_anything_the_engine_ends(tiny_model: Path) -> None:
    """The three texts of one client's request count as one."""
    engine = Faulty(tiny_model)
    engine.fails = lambda _: True
    for names in (["first-0", "first-1", "first-2"], ["second"]):
        assert engine.answers(dict.fromkeys(names, ASKED["short"])) == dict.fromkeys(names, ([], [], ["memory"]))
    ask(engine.loop, "third", *ASKED["short"])
    with pytest.raises(torch.OutOfMemoryError, match="3 requests in a row"):
        while engine.loop.has_work:
            engine.loop.step()
    engine.loop.close()


def test_states_are_not_advanced_twice(tmp_path: Path) -> None:
    """All of a failed step is computed again from the beginning; what fails a second time, once begun again, ends."""
    engine = Faulty(make_pair("lfm2", tmp_path).directory)
    for first, times in ((0, 1), (2, 1), (6, 1), (8, 2)):
        engine.losses.clear()
        engine.fail_at(range(first, first + times))
        engine.check(engine.answers(ASKED, str(first)))
    engine.fails = lambda names: "culprit" in names
    engine.losses.clear()
    said = engine.answers(ASKED, "always")
    assert said["culprit"][2] == ["memory"]
    engine.check(said)
    engine.loop.close()


@pytest.mark.parametrize("bad", [{0}, {3}, {1, 4}, {0, 1, 2, 3, 4}])
def test_a_step_is_halved_until_single_rows_fail(bad: set[int]) -> None:
    """Rows 0 to 2 decode, the second with drafts; 3 and 4 are chunks."""
    chunks = (Chunk(3, 0, 5, samples=False), Chunk(4, 0, 6, samples=True))
    plan = StepPlan(7, decode_rows=[0, 1, 2], decode_starts=[10, 11, 12], drafts={1: (8, 9)}, chunks=chunks)

    def compute(part: StepPlan) -> list[tuple[object, ...]]:
        decodes = zip(part.decode_rows, part.decode_starts, strict=True)
        rows = [(row, start, part.drafts.get(index, ())) for index, (row, start) in enumerate(decodes)]
        rows += [(chunk.row, chunk.start, chunk) for chunk in part.chunks]  # type: ignore[misc]
        if bad & {row[0] for row in rows}:
            raise torch.OutOfMemoryError
        return list(rows)

    parts = list(compute_in_parts(plan, compute))
    assert sum(isinstance(computed, torch.OutOfMemoryError) for _, computed in parts) == len(bad)
    rows = [row for part, _ in parts for row in [*part.decode_rows, *(chunk.row for chunk in part.chunks)]]
    assert rows == [0, 1, 2, 3, 4]
    computed = [row for _, rows in parts if isinstance(rows, list) for row in rows]
    whole = [(0, 10, ()), (1, 11, (8, 9)), (2, 12, ()), (3, 0, chunks[0]), (4, 0, chunks[1])]
    assert computed == [row for row in whole if row[0] not in bad]
    assert not any(part.new_rows or part.table_changes or part.block_ops for part, _ in parts)
