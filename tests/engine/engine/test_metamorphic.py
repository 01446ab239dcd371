"""Each request gets the same answer alone and beside any others: real model, scheduler, worker, engine loop.

Hundreds of schedules, drawn by number: arrivals, aborts, deadlines, choices and branches that share blocks, prefix
hits, preemptions, swaps out and in, chunk and block sizes, one or two steps under way. Float32 on the CPU. Sums are
taken in another order where shapes differ, so two logits that are nearly equal could change places: requests whose
answer has such logits when they are alone are not compared but counted; a test checks that there are nearly none. Some
schedules have their decodes replayed as graphs (by a stand-in, recorded.py), and in some, requests with a grammar run
beside those without.
"""

from __future__ import annotations

import random
import re
import string
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from llguidance import LLTokenizer, TokenizerWrapper
from recorded import RecordedOperations, StaticAttention

from octavo_engine.attention.torch_reference import TorchAttention
from octavo_engine.core.kv_groups import KVGroup
from octavo_engine.core.kv_memory import KVMemory
from octavo_engine.core.request import Request
from octavo_engine.core.scheduler import Scheduler
from octavo_engine.core.settings import SchedulerSettings
from octavo_engine.core.step import Chunk, NewRow, RequestOutput, StepPlan, StepResult, TableChange
from octavo_engine.engine.info import EngineInfo
from octavo_engine.engine.loop import EngineLoop
from octavo_engine.engine.scheduler_stats import StatsReader
from octavo_engine.model.configuration.read_spec import read_spec
from octavo_engine.model.decoder import Decoder
from octavo_engine.model.loader import load_model
from octavo_engine.model.source import resolve_model
from octavo_engine.model.spec import ModelSpec
from octavo_engine.runner.device_thread import DeviceThread
from octavo_engine.runner.executor import Executor, ThreadExecutor
from octavo_engine.runner.kv_cache import allocate_cache
from octavo_engine.runner.masks import NO_MASKS, Masks
from octavo_engine.runner.memory.kv_blocks import BlockShares
from octavo_engine.runner.state_table import StateTable
from octavo_engine.runner.worker import ForwardedStep, LaunchedStep, Worker
from octavo_engine.sampling_params import SamplingParams
from octavo_engine.structured.grammar import regex_grammar
from octavo_engine.structured.grammar_masks import GrammarMasks
from octavo_engine.structured.mask_provider import MaskRow

CPU = torch.device("cpu")
SCHEDULES = 120
GRAPHED = 50
WINDOWED = 30
SPECULATED = 24
GUIDED = 30
RUNGS = [1, 2, 5]
MIXED = [16, 48]
"""Fewer than there can be rows, and not all there are below."""
VOCABULARY = 64
LONGEST_ANSWER = 20
TIE = 1e-4
"""Alone, the likeliest token must lead the next one by so much in log probability, else it is a tie."""
WAYS = {
    "greedy": SamplingParams(max_tokens=LONGEST_ANSWER, temperature=0.0),
    "drawn": SamplingParams(max_tokens=LONGEST_ANSWER, temperature=1.0, seed=1),
    "top_k": SamplingParams(max_tokens=LONGEST_ANSWER, temperature=1.5, top_k=20, seed=2),
    "top_p": SamplingParams(max_tokens=LONGEST_ANSWER, temperature=0.8, top_p=0.9, min_p=0.02, seed=3),
    "penalties": SamplingParams(
        max_tokens=LONGEST_ANSWER, temperature=0.7, repetition_penalty=1.2, presence_penalty=0.5, seed=4
    ),
    "frequency": SamplingParams(max_tokens=LONGEST_ANSWER, temperature=0.0, frequency_penalty=0.7),
}
TEXTS = string.ascii_letters + string.digits + " "
"""The text of each token but the last one, which ends an answer."""
FORMS = {
    "words": (r"(ab|ba|[c-k][A-M]{2})", r"([ab]|[c-k][A-M]?)"),
    "numbers": (r"[a-f]{1,3}[0-9]{2}[G-Z]", r"[a-f]{1,3}[0-9]{0,2}"),
    "names": (r"[a-z]([0-9]|[A-Z][a-z])", r"[a-z][A-Z]?"),
}
"""Regular expressions of the parts that an answer repeats, and of what a part may begin with."""
GRAMMARS = {name: regex_grammar(f"({part}){{{LONGEST_ANSWER}}}") for name, (part, _) in FORMS.items()}
"""No answer is long enough to end by its grammar."""
GUIDED_WAYS = {
    "words": replace(WAYS["greedy"], grammar=GRAMMARS["words"]),
    "numbers": replace(WAYS["drawn"], grammar=GRAMMARS["numbers"]),
    "names": replace(WAYS["penalties"], grammar=GRAMMARS["names"]),
}
LEAST = {
    "schedules": SCHEDULES,
    "compared": 720,
    "whole answers": 480,
    "steps beside another": 1_800,
    "steps that were launched ahead": 1_800,
    "cut chunks": 360,
    "preemptions": 60,
    "recomputed_tokens": 180,
    "swapped_out_blocks": 72,
    "swapped_in_blocks": 30,
    "copied_blocks": 96,
    "hits": 48,
    "choices": 120,
    "branches": 30,
    "aborts": 96,
    "timeouts": 36,
}
"""What the schedules must contain together, so that the test cannot become smaller unnoticed."""


@dataclass
class Model:
    """The weights, loaded once, and what each prompt's answer is alone."""

    decoder: Decoder
    spec: ModelSpec
    prompts: list[list[int]]
    answers: dict[tuple[int, str], list[int]] = field(default_factory=dict)
    ties: set[tuple[int, str]] = field(default_factory=set)

    def worker(
        self,
        *,
        rows: int,
        length: int,
        groups: list[KVGroup],
        block_size: int,
        graphs: RecordedOperations | None = None,
    ) -> Worker:
        """A worker of its own cache, in which every slot that was never written is no number."""
        backend = TorchAttention() if graphs is None else StaticAttention()
        cache = allocate_cache(
            backend,
            self.spec.kv_groups,
            num_blocks=[group.num_blocks for group in groups],
            swap_blocks=[group.swap_blocks for group in groups],
            block_size=block_size,
            dtype=torch.float32,
            device=CPU,
        )
        for caches in (cache.layers, cache.swap):
            for layer in caches.values():
                layer.key.fill_(torch.nan)
                layer.value.fill_(torch.nan)
        worker = Worker(self.decoder, backend, cache, StateTable(rows, length, block_size, len(groups), CPU))
        if graphs is not None:
            worker.capture(graphs, [size for size in RUNGS if size <= rows], mixed=MIXED)
        return worker

    def groups(self, blocks: int, swap: int, shares: BlockShares) -> list[KVGroup]:
        """The spec's groups with so many blocks, those with a window by `shares` fewer."""
        return [
            KVGroup(
                shares.blocks_of(group.window, blocks),
                group.kind,  # type: ignore[arg-type]
                group.window,
                shares.blocks_of(group.window, swap),
            )
            for group in self.spec.kv_groups
        ]

    def compute_alone(self, prompt: int, way: str, provider: GrammarMasks | None = None) -> None:
        """The prompt in one piece, then token by token, without another request."""
        tokens, params = self.prompts[prompt], (WAYS | GUIDED_WAYS)[way]
        greedy = params.temperature == 0
        if greedy:
            params = replace(params, logprobs=VOCABULARY)
        groups = self.groups(8, 0, BlockShares(0, (), 16, 128, 1))
        worker = self.worker(rows=1, length=128, groups=groups, block_size=16)
        new = NewRow(0, "alone", tuple(tokens), len(tokens), params)
        chunk = Chunk(0, 0, len(tokens), True)
        tables = tuple(TableChange(0, index, 0, tuple(range(8))) for index in range(len(groups)))
        plan = StepPlan(0, (new,), tables, chunks=(chunk,))
        answer: list[int] = []
        if provider is not None:
            provider.add(Request(request_id="alone", prompt_token_ids=tuple(tokens), sampling=params))
        for number in range(LONGEST_ANSWER):
            masks = NO_MASKS if provider is None else masks_of_one(provider, answer)
            result = worker.finish(worker.sample(worker.forward(plan), masks))
            answer += result.token_ids
            if greedy:
                top = [value for token, value in result.logprobs[0][0].top if not masks or token in allowed(masks)]
                first, second = [*top, float("-inf")][:2]
                if first - second < TIE:
                    self.ties.add((prompt, way))
            plan = StepPlan(0, decode_rows=[0], decode_starts=[len(tokens) + number])
        self.answers[prompt, way] = answer
        if provider is not None:
            provider.remove("alone")


class _Texts:
    """What llguidance reads of a tokenizer."""

    eos_token_id, bos_token_id, special_token_ids = VOCABULARY - 1, None, (VOCABULARY - 1,)
    tokens = (*(text.encode() for text in TEXTS), b"<end>")

    def __call__(self, text: bytes) -> list[int]:
        return [TEXTS.index(chr(byte)) for byte in text]


class DrawnMasks(GrammarMasks):
    """A grammar is ready after as many looks as are drawn, instead of when a thread has compiled it."""

    def __init__(self, seed: int) -> None:
        super().__init__(lambda: LLTokenizer(TokenizerWrapper(_Texts())), VOCABULARY)
        self._rng, self._looks = random.Random(seed), Counter[str]()

    def add(self, request: Request) -> None:
        super().add(request)
        self._looks[request.request_id] = self._rng.choice([0, 0, 1, 5])
        if (answer := self._answers.get(request.request_id)) is not None and answer.matcher is not None:
            wait([answer.matcher])

    def is_ready(self, request_id: str) -> bool:
        self._looks[request_id] -= 1
        return self._looks[request_id] < 0 and super().is_ready(request_id)


def masks_of_one(provider: GrammarMasks, answer: Sequence[int]) -> Masks:
    found = provider.masks([MaskRow("alone", answer, ())])
    assert not found.errors
    return Masks([0], found.bits)


def allowed(masks: Masks) -> set[int]:
    return set(np.flatnonzero(np.unpackbits(masks.bits[0].numpy().view(np.uint8), bitorder="little")).tolist())


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> Iterator[Model]:
    with one_thread():
        yield make_model(tiny_model)


@contextmanager
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def make_model(folder: Path, window: int | None = None, prompts: int = 24) -> Model:
    """Make a model; with a `window`, the first layer sees no more than that."""
    files = resolve_model(str(folder), None, lambda *_: None)
    spec = read_spec(files)
    if window is not None:
        first, *others = spec.layers
        spec = replace(spec, layers=(replace(first, mixer=replace(first.mixer, window=window)), *others))
    decoder = load_model(files, spec, CPU, torch.float32, lambda *_: None)
    rng = random.Random(11)
    beginnings = [[], *([rng.randrange(VOCABULARY) for _ in range(40)] for _ in range(3))]
    drawn = []
    for _ in range(prompts):
        own = [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 24))]
        drawn.append(rng.choice(beginnings)[: rng.choice([8, 16, 31, 40])] + own)
    model = Model(decoder, spec, drawn)
    for prompt in range(prompts):
        for way in WAYS:
            model.compute_alone(prompt, way)
    return model


class InlineExecutor:
    """Computes a step as it is asked for, and reads its results when they are."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._launched: deque[LaunchedStep] = deque()
        self._forwarded: list[ForwardedStep] = []
        self.cut = 0
        """Chunks that were only a part of what their request had to compute."""
        self.drafts = self.accepted = 0

    idle = True  # so that the loop plans ahead at once

    def wait(self, seconds: float) -> None:
        """Never needed."""

    def forward(self, plan: StepPlan) -> None:
        self.cut += sum(not chunk.samples for chunk in plan.chunks)
        self.drafts += sum(map(len, plan.drafts.values()))
        self._forwarded.append(self._worker.forward(plan))

    def sample(self, masks: Masks = NO_MASKS) -> None:
        self._launched.append(self._worker.sample(self._forwarded.pop(), masks))

    def result(self) -> StepResult:
        result = self._worker.finish(self._launched.popleft())
        self.accepted += sum(map(len, result.more_token_ids.values()))
        return result

    def close(self) -> None:
        self._launched.clear()


@dataclass
class Asked:
    """A request as its client sees it."""

    expected: list[int]
    """Alone; for a branch, how its parent goes on."""
    prompt: list[int]
    way: str
    tie: bool
    kind: str
    scope: dict[str, Any]
    answer: list[int] = field(default_factory=list)
    end: RequestOutput | None = None


class PretendedProposer:
    """Knows the answers. It proposes the next tokens of one, wrong ones among them, or none, by its own dice."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule, self._rng = schedule, random.Random(schedule.number)

    def propose(self, request_id: str, token_ids: Sequence[int]) -> Sequence[int]:
        asked, rng = self._schedule.asked[request_id], self._rng
        known = len(token_ids) - len(asked.prompt)
        right = asked.expected[known : known + rng.choice([0, 1, 2, 5])]
        return [token if rng.random() < 0.8 else rng.randrange(VOCABULARY) for token in right]

    def remove(self, request_id: str) -> None:
        """Answers are known before."""


class Schedule:
    """A batch of requests, all of it drawn from its number."""

    def __init__(
        self,
        model: Model,
        number: int,
        graphs: RecordedOperations | None = None,
        *,
        speculates: bool = False,
        masks: GrammarMasks | None = None,
    ) -> None:
        self.model, self.number, self.rng = model, number, random.Random(number)
        self.ways = WAYS if masks is None else WAYS | GUIDED_WAYS
        rng = self.rng
        self.block_size = rng.choice([4, 8, 16])
        self.longest = max(map(len, model.prompts)) + LONGEST_ANSWER
        least = -(-self.longest // self.block_size)
        blocks = least + rng.choice([0, 1, 2, least // 2, 3 * least])
        swap = rng.choice([0, least, 2 * least])
        rows = rng.randint(2, 6)
        tokens = max(rows, rng.choice([4, 7, 16, 33, 64, 256]))
        groups = model.groups(blocks, swap, BlockShares(0, (), self.block_size, tokens, number % rows + 1))
        memory = KVMemory(
            groups,
            self.block_size,
            prefix_caching=rng.random() < 0.75,
            eviction=rng.choice(["lru", "lfu", "priority"]),
            ttl=rng.choice([None, None, 0.2]),
            max_chunk=tokens,
        )
        settings = SchedulerSettings(
            max_num_seqs=rows,
            max_num_batched_tokens=tokens,
            max_model_len=self.longest,
            policy=rng.choice(["fcfs", "priority"]),  # type: ignore[arg-type]
            max_preemptions=rng.choice([0, 1, 3, 3]),
            max_skips=rng.choice([0, 2, 32]),
            watermark=rng.choice([0.0, 0.05]),
            swap_block_seconds=0.0 if swap else float("inf"),
        )
        self.scheduler = Scheduler(settings, memory, proposer=PretendedProposer(self) if speculates else None)
        worker = model.worker(
            rows=rows,
            length=self.longest,
            groups=groups,
            block_size=self.block_size,
            graphs=graphs,
        )
        # The device's own thread now and then; it changes nothing but when results are there.
        threaded = number % 10 == 0
        self.inline = InlineExecutor(worker)
        executor: Executor = ThreadExecutor(worker, DeviceThread()) if threaded else self.inline
        info = EngineInfo(
            max_model_len=self.longest,
            vocab_size=VOCABULARY,
            eos_token_ids=(),
            block_size=self.block_size,
            num_kv_blocks=blocks,
            max_num_seqs=rows,
            dtype="float32",
            device="cpu",
            attention_backend="torch",
            load_seconds=0.0,
        )
        self.now = 0.0
        self.loop = EngineLoop(
            self.scheduler, executor, info, lambda: self.now, depth=rng.choice([1, 2, 2]), mask_provider=masks
        )
        self.asked: dict[str, Asked] = {}
        self.prompts = rng.sample(range(len(model.prompts)), 6)

    def run(self, figures: Counter[str]) -> None:
        """Everything arrives within some steps; then until nothing is left."""
        arrivals = self.rng.randint(3, 14)
        turn = 0
        while turn < arrivals or self.loop.has_work:
            assert turn < 3_000, "requests never end"
            if turn < arrivals and self.rng.random() < 0.6:
                self._arrive()
            if self.rng.random() < 0.04:
                self._abort(figures)
            self._hear(figures)
            turn += 1
        self.loop.check_integrity()
        assert self.scheduler.memory.blocks_used == 0
        assert all(swap.available == swap.num_blocks for swap in self.scheduler.memory.swap.pools)
        self.loop.close()
        self._count(figures)

    def _arrive(self) -> None:
        rng = self.rng
        tenant = rng.choice(["a", "a", "b"])
        scope = {
            "tenant": tenant,
            "cache_salt": tenant,
            "priority": rng.randint(-1, 1),
            "timeout": rng.choice([None] * 9 + [0.05, 0.3]),
        }
        running = [name for name, asked in self.asked.items() if self._can_branch(name, asked)]
        if running and rng.random() < 0.3:
            self._branch(rng.choice(running))
            return
        prompt, first = rng.choice(self.prompts), None
        for way in rng.sample(sorted(self.ways), rng.choice([1, 1, 3])):
            tokens = rng.randint(1, LONGEST_ANSWER)
            expected = self.model.answers[prompt, way][:tokens]
            tie = (prompt, way) in self.model.ties
            kind = "choice" if first else "request"
            name = self._add(Asked(expected, self.model.prompts[prompt], way, tie, kind, scope), fork_of=first)
            first = first or name

    def _can_branch(self, name: str, asked: Asked) -> bool:
        """Presence, frequency and grammars look at where the answer begins, which is elsewhere for a branch."""
        on = 0 < len(asked.answer) < len(asked.expected)
        return asked.end is None and on and asked.way not in ("penalties", "frequency", *GUIDED_WAYS)

    def _branch(self, name: str) -> None:
        """A request whose prompt is another's, with what that one has said: it must go on like that one."""
        parent = self.asked[name]
        done = len(parent.answer)
        prompt = parent.prompt + parent.answer
        branch = Asked(
            parent.expected[done:], prompt, parent.way, parent.tie, "branch", {**parent.scope, "timeout": None}
        )
        self._add(branch, fork_of=name)

    def _add(self, asked: Asked, fork_of: str | None) -> str:
        name = f"{self.number}-{len(self.asked)}"
        self.asked[name] = asked
        params = replace(self.ways[asked.way], max_tokens=len(asked.expected))
        tokens = tuple(asked.prompt)
        self.loop.add(
            Request(request_id=name, prompt_token_ids=tokens, sampling=params, fork_of=fork_of, **asked.scope)
        )
        return name

    def _abort(self, figures: Counter[str]) -> None:
        live = [name for name, asked in self.asked.items() if asked.end is None]
        if live:
            self.loop.abort([self.rng.choice(live)])
            figures["aborts"] += 1

    def _hear(self, figures: Counter[str]) -> None:
        running = len(self.scheduler.planner.running)
        preempted = {
            state.request_id
            for state in self.scheduler.planner.running
            if state.preemptions and self.asked[state.request_id].way in GUIDED_WAYS
        }
        for output in self.loop.step().each():
            asked = self.asked[output.request_id]
            assert asked.end is None, "it got more output after its end"
            figures["steps of guided answers after a preemption"] += output.request_id in preempted
            asked.answer += output.token_ids
            if output.finish_reason is not None:
                asked.end = output
        figures["steps"] += 1
        figures["steps beside another"] += running > 1
        figures["steps that were launched ahead"] += bool(self.loop._launched)
        self.now += 0.01

    def _count(self, figures: Counter[str]) -> None:
        stats = StatsReader(self.scheduler).read()
        for name in ("preemptions", "swapped_out_blocks", "swapped_in_blocks", "copied_blocks", "recomputed_tokens"):
            figures[name] += getattr(stats, name)
        figures["schedules"] += 1
        figures["cut chunks"] += self.inline.cut
        figures["drafts"] += self.inline.drafts
        figures["accepted drafts"] += self.inline.accepted
        figures["requests"] += len(self.asked)
        for asked in self.asked.values():
            assert asked.end is not None
            figures["hits"] += asked.end.cached_tokens > 0 and asked.kind == "request"
            figures["choices"] += asked.end.cached_tokens > 0 and asked.kind == "choice"
            figures["branches"] += asked.end.cached_tokens > 0 and asked.kind == "branch"
            figures["timeouts"] += asked.end.finish_reason == "timeout"


def compare(schedule: Schedule, figures: Counter[str]) -> None:
    """Every answer, and what has come of the unfinished ones, is that of the request alone."""
    for name, asked in schedule.asked.items():
        assert asked.end is not None
        assert asked.end.error is None, asked.end.error
        if asked.tie:
            figures["ties, not compared"] += 1
            continue
        figures["compared"] += 1
        figures["whole answers"] += asked.end.finish_reason == "length"
        assert asked.answer == asked.expected[: len(asked.answer)], f"{name} ({asked.way}, {asked.kind}) differs"
        if asked.end.finish_reason == "length":
            assert len(asked.answer) == len(asked.expected)
        else:
            assert asked.end.finish_reason in ("abort", "timeout")


def assert_enough(figures: Counter[str], least: dict[str, int]) -> None:
    """Each event that a test is about happened at least as often as `least` says."""
    missing = {name: (figures[name], count) for name, count in least.items() if figures[name] < count}
    assert not missing, f"too little happened, (found, wanted): {missing}"


def test_the_answers_alone_are_varied_and_hardly_any_is_a_tie(model: Model) -> None:
    assert len({tuple(answer) for answer in model.answers.values()}) > 0.95 * len(model.answers)
    assert len({token for answer in model.answers.values() for token in answer}) > VOCABULARY / 2
    assert len(model.ties) <= 0.005 * len(model.answers)


@pytest.mark.timeout(1_200)
def test_each_request_has_the_same_answer_in_any_batch_as_alone(model: Model) -> None:
    figures: Counter[str] = Counter()
    for number in range(SCHEDULES):
        schedule = Schedule(model, number)
        schedule.run(figures)
        compare(schedule, figures)
    print("\n" + "\n".join(f"{count:>9,} {name}" for name, count in sorted(figures.items())))
    assert figures["ties, not compared"] <= 0.005 * figures["requests"]
    assert_enough(figures, LEAST)


def test_so_it_does_where_decodes_are_replayed(model: Model) -> None:
    figures: Counter[str] = Counter()
    for number in range(1_000, 1_000 + GRAPHED):
        graphs = RecordedOperations()
        schedule = Schedule(model, number, graphs)
        schedule.run(figures)
        compare(schedule, figures)
        figures["replays"] += graphs.replays
    least = {
        "compared": 200,
        "whole answers": 130,
        "replays": 700,
        "preemptions": 12,
        "swapped_in_blocks": 3,
        "hits": 10,
    }
    assert_enough(figures, least)


@pytest.mark.parametrize("replayed", [False, True], ids=["eager", "replayed"])
def test_so_it_does_where_drafts_are_verified(model: Model, replayed: bool) -> None:
    """Speculative decoding changes no answer, however it is sampled; drafts are decodes that graphs replay."""
    figures: Counter[str] = Counter()
    for number in range(SPECULATED):
        graphs = RecordedOperations() if replayed else None
        schedule = Schedule(model, number, graphs, speculates=True)
        schedule.run(figures)
        compare(schedule, figures)
        figures["replays"] += graphs.replays if graphs else 0
    least = {
        "compared": 100,
        "whole answers": 60,
        "drafts": 500,
        "accepted drafts": 200,
        "preemptions": 5,
        "swapped_in_blocks": 1,
        "copied_blocks": 5,
        "hits": 4,
        "replays": 200 * replayed,
    }
    assert_enough(figures, least)


def test_so_it_does_where_a_layer_sees_a_window(tiny_model: Path) -> None:
    """Two KV groups, one with few blocks, eager and replayed; test_windows.py says that answers alone are right."""
    figures: Counter[str] = Counter()
    with one_thread():
        model = make_model(tiny_model, window=8, prompts=6)
        for number in range(WINDOWED):
            graphs = RecordedOperations() if number % 6 == 0 else None
            schedule = Schedule(model, number, graphs)
            schedule.run(figures)
            compare(schedule, figures)
            figures["replays"] += graphs.replays if graphs else 0
    least = {
        "replays": 80,
        "compared": 150,
        "whole answers": 100,
        "preemptions": 20,
        "swapped_in_blocks": 10,
        "copied_blocks": 10,
        "hits": 4,
        "choices": 10,
        "branches": 3,
    }
    assert_enough(figures, least)


@pytest.mark.parametrize("speculates", [False, True], ids=["", "drafts"])
def test_so_it_does_where_answers_follow_grammars(model: Model, speculates: bool) -> None:
    """Requests with and without a grammar are preempted, swapped and resumed beside each other, two steps at once."""
    figures: Counter[str] = Counter()
    masks = DrawnMasks(GUIDED)
    for way in GUIDED_WAYS:
        for prompt in range(len(model.prompts)):
            if (prompt, way) not in model.answers:
                model.compute_alone(prompt, way, masks)
    for number in range(2_000, 2_000 + GUIDED):
        schedule = Schedule(model, number, speculates=speculates, masks=masks)
        schedule.run(figures)
        compare(schedule, figures)
        for asked in schedule.asked.values():
            figures["guided answers"] += follows(asked)
        assert not any(map(masks.guides, schedule.asked)), "requests that ended are forgotten"
    print("\n" + "\n".join(f"{count:>9,} {name}" for name, count in sorted(figures.items())))
    least = {
        "guided answers": 50,
        "steps of guided answers after a preemption": 25,
        "steps that were launched ahead": 250,
        "compared": 150,
        "whole answers": 90,
        "preemptions": 10,
        "swapped_in_blocks": 5,
        "choices": 20,
        "accepted drafts": 150 * speculates,
    }
    assert_enough(figures, least)


def follows(asked: Asked) -> bool:
    """Whether an answer has a grammar and any tokens; it follows the grammar, as Python's own expressions see it."""
    if asked.way not in FORMS or not asked.answer:
        return False
    part, beginning = FORMS[asked.way]
    text = "".join(TEXTS[token] for token in asked.answer)
    assert re.fullmatch(f"({part})*({beginning})?", text), text
    return True
