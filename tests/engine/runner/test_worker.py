"""The worker alone, with plans made by hand: it computes the model's results, however the work is cut into steps."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from octavo_engine.attention.backend import StepInputs
from octavo_engine.attention.torch_reference import TorchAttention
from octavo_engine.core.step import BlockOp, BlockOpKind, Chunk, NewRow, StepPlan, StepResult, TableChange
from octavo_engine.model.configuration.read_spec import read_spec
from octavo_engine.model.loader import load_model
from octavo_engine.model.source import resolve_model
from octavo_engine.runner.block_ops import batches, measure_swap, run_block_ops
from octavo_engine.runner.inputs import gather_inputs
from octavo_engine.runner.kv_cache import KVCache, allocate_cache
from octavo_engine.runner.sampling import sampler
from octavo_engine.runner.state_table import StateTable
from octavo_engine.runner.worker import Worker
from octavo_engine.sampling_params import SamplingParams

CPU = torch.device("cpu")
BLOCKS, SWAP_BLOCKS, SIZE, ROWS, LENGTH = 48, 16, 16, 6, 160
GREEDY = SamplingParams(max_tokens=64, temperature=0.0, logprobs=0)
COPY, OUT, IN = BlockOpKind.COPY, BlockOpKind.SWAP_OUT, BlockOpKind.SWAP_IN


Said = list[tuple[int, float]]
"""Tokens with their log probabilities: these tell of a wrong number in the cache even where the token is the same."""


def said(result: StepResult) -> Said:
    assert not result.errors
    return [(token, result.logprobs[i][0].logprob) for i, token in enumerate(result.token_ids)]


def assert_alike(got: Said, expected: Said) -> None:
    assert [token for token, _ in got] == [token for token, _ in expected]
    assert [logprob for _, logprob in got] == pytest.approx([logprob for _, logprob in expected], abs=1e-4)


class Bench:
    """A worker on the tiny model, and its parts."""

    def __init__(self, model: Path) -> None:
        files = resolve_model(str(model), None, lambda *_: None)
        spec = read_spec(files)
        backend = TorchAttention()
        self.decoder = load_model(files, spec, CPU, torch.float32, lambda *_: None)
        self.cache = allocate_cache(
            backend,
            spec.kv_groups,
            num_blocks=[BLOCKS],
            swap_blocks=[SWAP_BLOCKS],
            block_size=SIZE,
            dtype=torch.float32,
            device=CPU,
        )
        self.table = StateTable(ROWS, LENGTH, SIZE, len(spec.kv_groups), CPU)
        self.worker = Worker(self.decoder, backend, self.cache, self.table)

    def alone(self, prompt: list[int], count: int, params: SamplingParams = GREEDY) -> Said:
        """The `count` tokens after `prompt`, computed by itself from block 0 on."""
        blocks = tuple(range(-(-(len(prompt) + count) // SIZE)))
        new = NewRow(0, "alone", tuple(prompt), len(prompt), params)
        first = StepPlan(0, (new,), (TableChange(0, 0, 0, blocks),), chunks=(Chunk(0, 0, len(prompt), True),))
        tokens = said(self.worker.execute(first))
        while len(tokens) < count:
            tokens += said(self.worker.execute(decode([0], [len(prompt) + len(tokens) - 1])))
        return tokens


@pytest.fixture(scope="module")
def bench(tiny_model: Path) -> Bench:
    return Bench(tiny_model)


def decode(rows: list[int], starts: list[int], **kwargs: object) -> StepPlan:
    return StepPlan(0, decode_rows=rows, decode_starts=starts, **kwargs)  # type: ignore[arg-type]


def prompt_of(seed: int, length: int) -> list[int]:
    return [random.Random(seed).randrange(64) for _ in range(length)]


def begin(row: int, prompt: list[int], blocks: list[int], params: SamplingParams = GREEDY) -> StepPlan:
    """A plan that computes a whole prompt."""
    return StepPlan(
        0,
        (NewRow(row, f"r{row}", tuple(prompt), len(prompt), params),),
        (TableChange(row, 0, 0, tuple(blocks)),),
        chunks=(Chunk(row, 0, len(prompt), True),),
    )


def test_first_steps_are_not_computed_in_parts(bench: Bench) -> None:
    """Memory that has room for each row alone is not enough while an engine starts."""

    def fail(_: object, args: tuple[StepInputs, object]) -> None:
        if len(args[0].token_ids) > 1:
            raise torch.OutOfMemoryError("Tried to allocate 2.00 MiB")

    hook = bench.decoder.register_forward_pre_hook(fail)
    with pytest.raises(torch.OutOfMemoryError, match=r"2\.00 MiB"):
        bench.worker.execute(decode([0, 1], [3, 3]))
    hook.remove()


def test_the_adapters_of_a_step_are_looked_up_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    adapters = Mock(begin=Mock(return_value=[]))
    monkeypatch.setattr(bench.worker, "_adapters", adapters)
    bench.worker.execute(decode([0], [3]))
    adapters.begin.assert_called_once()
    adapters.use.assert_called_once_with([])


def test_decodes_chunks_and_new_rows_in_one_step_are_as_each_alone(bench: Bench) -> None:
    prompts = {row: prompt_of(row, 5 + 13 * row) for row in range(4)}
    expected = {row: bench.alone(prompt, 3) for row, prompt in prompts.items()}
    free = list(range(8, BLOCKS))
    random.Random(1).shuffle(free)
    blocks = {row: [free.pop() for _ in range(5)] for row in prompts}
    got: dict[int, Said] = {row: [] for row in prompts}

    def take(result: StepResult, *rows: int) -> None:
        for row, news in zip(rows, said(result), strict=True):
            got[row].append(news)

    take(bench.worker.execute(begin(0, prompts[0], blocks[0])), 0)
    take(bench.worker.execute(begin(1, prompts[1], blocks[1])), 1)
    news = tuple(NewRow(r, f"r{r}", tuple(prompts[r]), len(prompts[r]), GREEDY) for r in (2, 3))
    tables = tuple(TableChange(r, 0, 0, tuple(blocks[r])) for r in (2, 3))
    starts = [len(prompts[1]), len(prompts[0])]
    chunks = (Chunk(3, 0, 20, False), Chunk(2, 0, len(prompts[2]), True))
    mixed = StepPlan(0, news, tables, decode_rows=[1, 0], decode_starts=starts, chunks=chunks)
    take(bench.worker.execute(mixed), 1, 0, 2)
    rest = (Chunk(3, 20, len(prompts[3]) - 20, True),)
    take(bench.worker.execute(decode([2], [len(prompts[2])], chunks=rest)), 2, 3)
    lasts = [len(prompts[row]) + len(got[row]) - 1 for row in (3, 2, 0, 1)]
    take(bench.worker.execute(decode([3, 2, 0, 1], lasts)), 3, 2, 0, 1)
    for row, tokens in got.items():
        assert_alike(tokens, expected[row][: len(tokens)])
    assert [len(tokens) for tokens in got.values()] == [3, 3, 3, 2]


def test_a_launched_step_feeds_the_next_before_its_tokens_are_read(bench: Bench) -> None:
    prompt = prompt_of(9, 30)
    expected = bench.alone(prompt, 12)
    launched = [bench.worker.launch(begin(2, prompt, [20, 21, 22]))]
    launched += [bench.worker.launch(decode([2], [len(prompt) + i])) for i in range(11)]
    assert_alike([said(bench.worker.finish(step))[0] for step in launched], expected)


def test_what_launched_steps_gave_stays_when_the_row_gets_another_owner(bench: Bench) -> None:
    first, second = prompt_of(3, 20), prompt_of(4, 25)
    expected = bench.alone(first, 2) + bench.alone(second, 2)
    steps = [
        bench.worker.launch(plan)
        for plan in (
            begin(1, first, [30, 31]),
            decode([1], [len(first)]),
            begin(1, second, [32, 33]),
            decode([1], [len(second)]),
        )
    ]
    assert_alike([said(bench.worker.finish(step))[0] for step in steps], expected)


def test_the_last_token_of_a_full_context_has_its_place(bench: Bench) -> None:
    prompt = prompt_of(5, LENGTH)
    result = bench.worker.execute(begin(0, prompt, list(range(LENGTH // SIZE))))
    assert len(result.token_ids) == 1
    assert not result.errors


def test_a_shared_block_is_copied_before_it_is_written(bench: Bench) -> None:
    prompt = prompt_of(6, 24)
    expected = bench.alone(prompt, 6)
    seeded = SamplingParams(max_tokens=64, temperature=1.0, seed=11, logprobs=0)
    other = bench.alone(prompt, 6, seeded)
    got, forked = said(bench.worker.execute(begin(0, prompt, [10, 11]))), []
    fork = StepPlan(
        0,
        (NewRow(1, "fork", tuple(prompt), len(prompt), seeded),),
        (TableChange(1, 0, 0, (10, 11)), TableChange(1, 0, 1, (12,))),
        (BlockOp(COPY, 0, 11, 12),),
        decode_rows=[0],
        decode_starts=[len(prompt)],
        chunks=(Chunk(1, len(prompt) - 1, 1, True),),
    )
    tokens = said(bench.worker.execute(fork))
    got.append(tokens[0])
    forked.append(tokens[1])
    for step in range(4):
        tokens = said(bench.worker.execute(decode([0, 1], [len(prompt) + 1 + step, len(prompt) + step])))
        got.append(tokens[0])
        forked.append(tokens[1])
    assert_alike(got, expected)
    assert_alike(forked, other[:5])


def test_a_preempted_sequence_goes_on_from_the_swap_space_with_other_blocks(bench: Bench) -> None:
    prompt = prompt_of(7, 40)
    expected = bench.alone(prompt, 8)
    got = said(bench.worker.execute(begin(3, prompt, [40, 41, 42])))
    got += said(bench.worker.execute(decode([3], [len(prompt)])))
    out = tuple(BlockOp(OUT, 0, block, slot) for block, slot in ((40, 5), (41, 9), (42, 2)))
    bench.worker.execute(StepPlan(0, block_ops=out))
    bench.worker.execute(begin(2, prompt_of(8, 60), [42, 40, 41, 39]))  # another request takes them
    back = tuple(BlockOp(IN, 0, slot, block) for slot, block in ((5, 44), (9, 43), (2, 40)))
    known = prompt + [token for token, _ in got]
    again = StepPlan(
        0,
        (NewRow(4, "again", tuple(known), len(prompt), GREEDY),),
        (TableChange(4, 0, 0, (44, 43, 40)),),
        back,
        decode_rows=[4],
        decode_starts=[len(known) - 1],
    )
    got += said(bench.worker.execute(again))
    got += [said(bench.worker.execute(decode([4], [len(known) + i])))[0] for i in range(5)]
    assert_alike(got, expected)


def test_a_plan_of_block_operations_alone_gives_nothing(bench: Bench) -> None:
    result = bench.worker.execute(StepPlan(7, block_ops=(BlockOp(COPY, 0, 1, 2),)))
    assert (result.step, result.token_ids, result.errors) == (7, [], {})


@pytest.mark.parametrize("together", [1, 3, 32])
def test_the_logprobs_and_errors_of_rows_are_found_by_their_index(
    together: int, bench: Bench, broken: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler, "MOST_TOGETHER", together)
    asked = SamplingParams(max_tokens=9, temperature=0.0, logprobs=2)
    silent = SamplingParams(max_tokens=9, temperature=0.0)
    for row, params in enumerate((silent, asked, silent, asked)):
        bench.worker.execute(begin(row, prompt_of(row, 10), [row], params))
    result = bench.worker.execute(decode([0, 1, 2, 3], [10] * 4))
    assert set(result.logprobs) == {1, 3}
    for index in (1, 3):
        [logprobs] = result.logprobs[index]
        assert logprobs.token_id == result.token_ids[index] and len(logprobs.top) == 2
    broken(2)
    again = bench.worker.execute(decode([0, 1, 2, 3], [10] * 4))
    assert set(again.errors) == {2}
    assert [again.token_ids[i] for i in (0, 1, 3)] == [result.token_ids[i] for i in (0, 1, 3)]
    assert again.logprobs == result.logprobs
    # What the broken row left in the state table can be computed on; no client gets it.
    bench.worker.execute(decode([0, 1, 2, 3], [11] * 4))


@pytest.fixture
def broken(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Makes the logits of one row NaN."""
    real = bench.decoder.logits

    def poison(row: int) -> None:
        def logits(hidden: torch.Tensor, out: None = None) -> torch.Tensor:
            values: torch.Tensor = real(hidden)
            values[row] = torch.nan
            return values

        monkeypatch.setattr(bench.decoder, "logits", logits)

    yield poison


def test_a_step_of_decodes_alone_has_the_inputs_of_any_other_step(bench: Bench) -> None:
    """The short way and the general one agree in every tensor."""
    rows, starts = [4, 0, 3], [37, 0, 159]
    for row in rows:
        bench.table.apply(begin(row, prompt_of(row, 160), random.Random(row).sample(range(BLOCKS), 10)))
    short = gather_inputs(decode(rows, starts), bench.table)
    chunks = tuple(Chunk(row, start, 1, True) for row, start in zip(rows, starts, strict=True))
    general = gather_inputs(StepPlan(0, chunks=chunks), bench.table)
    for name in ("token_ids", "positions", "cu_query_lens", "context_lens", "token_indices"):
        one, other = getattr(short.inputs, name), getattr(general.inputs, name)
        assert one.dtype == other.dtype, name
        assert one.tolist() == other.tolist(), name
    for one, other in zip(
        (*short.inputs.block_tables, *short.inputs.slot_mapping),
        (*general.inputs.block_tables, *general.inputs.slot_mapping),
        strict=True,
    ):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    assert short.inputs.query_lens_host == general.inputs.query_lens_host == (1, 1, 1)
    assert short.inputs.context_lens_host == general.inputs.context_lens_host == (38, 1, 160)
    assert (short.sampled.rows, short.sampled.positions) == (general.sampled.rows, general.sampled.positions)
    assert torch.equal(short.sampled.rows_device, general.sampled.rows_device)
    assert torch.equal(short.sampled.positions_device, general.sampled.positions_device)


def test_a_place_without_a_block_is_no_wild_index(bench: Bench) -> None:
    bench.table.apply(StepPlan(0, table_changes=(TableChange(5, 0, 0, (-1, -1, 7)),)))
    assert bench.table.block_tables[0][5, :3].tolist() == [0, 0, 7]


PAIRS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=5)
OPERATIONS = st.lists(st.tuples(st.sampled_from(BlockOpKind), PAIRS), min_size=1, max_size=4).map(
    lambda runs: [BlockOp(kind, 0, *pair) for kind, pairs in runs for pair in pairs]
)


def fill(cache: KVCache) -> None:
    for swap in (False, True):
        for number, tensor in enumerate(cache.tensors(0, swap=swap)):
            tensor.copy_(torch.randn(tensor.shape, generator=torch.Generator().manual_seed(100 * swap + number)))


@hypothesis_settings(max_examples=60)
@given(ops=OPERATIONS)
def test_operations_in_batches_are_as_one_after_another(bench: Bench, ops: list[BlockOp]) -> None:
    fill(bench.cache)
    run_block_ops(bench.cache, ops)
    together = [tensor.clone() for swap in (False, True) for tensor in bench.cache.tensors(0, swap=swap)]
    fill(bench.cache)
    for op in ops:
        for source, target in zip(
            bench.cache.tensors(0, swap=op.kind is IN), bench.cache.tensors(0, swap=op.kind is OUT), strict=True
        ):
            target[op.target] = source[op.source].clone()
    one_by_one = [tensor for swap in (False, True) for tensor in bench.cache.tensors(0, swap=swap)]
    assert all(torch.equal(one, other) for one, other in zip(together, one_by_one, strict=True))


def test_operations_that_do_not_touch_each_other_are_one_move() -> None:
    assert len(list(batches([BlockOp(OUT, 0, i, i) for i in range(9)]))) == 1
    assert len(list(batches([BlockOp(COPY, 0, 0, 1), BlockOp(COPY, 0, 0, 2), BlockOp(COPY, 0, 1, 3)]))) == 2
    assert len(list(batches([BlockOp(OUT, 0, 0, 0), BlockOp(OUT, 1, 0, 0), BlockOp(IN, 0, 0, 0)]))) == 3


def test_moving_blocks_is_measured_without_a_trace(bench: Bench) -> None:
    fill(bench.cache)
    before = [tensor.clone() for tensor in bench.cache.tensors(0)]
    assert 0 < measure_swap(bench.cache) < 1
    assert all(torch.equal(one, other) for one, other in zip(before, bench.cache.tensors(0), strict=True))
    assert measure_swap(KVCache(bench.cache.groups, SIZE, bench.cache.layers, {})) == float("inf")
