"""Decode steps by graphs give the tokens of eager steps; without a GPU, a stand-in records (recorded.py)."""

from __future__ import annotations

import logging
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from recorded import CannotBeRecordedError, RecordedOperations, Recorder, StaticAttention
from worker_setups import resolved_of, run_warm_up, setup_of

from octavo_engine import LLM
from octavo_engine.attention.backend import AttentionBackend, KVGroupSpec, RowSpec, StateSpec, StepInputs
from octavo_engine.attention.flashinfer import FlashInferAttention
from octavo_engine.attention.torch_reference import TorchAttention
from octavo_engine.attention.varlen import VarlenAttention
from octavo_engine.capture import Capture
from octavo_engine.config import EngineConfig
from octavo_engine.core.step import Chunk, NewRow, StepPlan, StepResult, TableChange
from octavo_engine.engine.startup import resolved_config, warm_up, worker_setup
from octavo_engine.engine.startup.resolved_config import ResolvedConfig
from octavo_engine.engine.startup.sizing import Sizing, memory_need
from octavo_engine.engine.startup.start_engine import config_of_ranks
from octavo_engine.errors import DoesNotFitError
from octavo_engine.model.configuration.read_spec import read_spec
from octavo_engine.model.decoder import Decoder
from octavo_engine.model.layers.operations.products import torch_product
from octavo_engine.model.loader import load_model
from octavo_engine.model.source import resolve_model
from octavo_engine.model.spec import ModelSpec
from octavo_engine.runner.graphs import (
    ladder,
    mixed_inputs,
    mixed_ladder,
    mixed_sequences,
    padding_inputs,
    uses_graphs,
    uses_mixed_graphs,
)
from octavo_engine.runner.inputs import gather_inputs
from octavo_engine.runner.kv_cache import allocate_cache
from octavo_engine.runner.memory.device_memory import DeviceMemory
from octavo_engine.runner.memory.memory_plan import MemoryLimits, MemoryNeed, MemoryPlan
from octavo_engine.runner.memory.plan_memory import plan_memory
from octavo_engine.runner.row_adapters import RowAdapters
from octavo_engine.runner.sampling_table import PENALIZES, needs_of
from octavo_engine.runner.state_table import StateTable
from octavo_engine.runner.worker import Worker
from octavo_engine.sampling_params import SamplingParams

CPU = torch.device("cpu")
SIZE, ROWS, LENGTH, BLOCKS = 8, 12, 96, 160
RUNGS = [1, 2, 4, 8, 11]
MIXED = [16, 32, 64, 96]
CUT, CUT_OF_CHUNK = 64, 256
"""Tokens of a context that Triton's attention does not cut yet, in a decode and after a chunk of a prompt."""


def test_the_ladder_is_close_and_ends_at_the_most_there_can_be() -> None:
    assert ladder(1) == [1]
    assert ladder(4) == [1, 2, 4]
    assert ladder(20) == [1, 2, 4, 8, 16, 20]
    assert ladder(256)[3:] == list(range(8, 257, 8))
    assert ladder(300)[-4:] == [256, 272, 288, 300]
    assert ladder(512) == ladder(5_000)
    assert len(ladder(512)) == 3 + 32 + 16
    for most in range(1, 600):
        sizes = ladder(most)
        assert sizes == sorted(set(sizes)) and sizes[-1] == min(most, 512)


def test_steps_with_prompts_have_sizes_of_their_own() -> None:
    assert mixed_ladder(8) == []
    assert mixed_ladder(100) == [16, 32, 64, 96]
    assert mixed_ladder(8192)[-5:] == [256, 320, 384, 448, 512]
    assert mixed_sequences(max_sampled=300, max_num_seqs=300, tokens=512) == (256, 17)
    assert mixed_sequences(max_sampled=300, max_num_seqs=300, tokens=16) == (16, 17)
    assert mixed_sequences(max_sampled=4, max_num_seqs=4, tokens=512) == (4, 5)


def load_tiny(folder: Path) -> tuple[Decoder, ModelSpec]:
    files = resolve_model(str(folder), None, lambda *_: None)
    spec = read_spec(files)
    return load_model(files, spec, CPU, torch.float32, lambda *_: None), spec


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> tuple[Decoder, ModelSpec]:
    decoder, spec = load_tiny(tiny_model)
    assert decoder.compute.product is torch_product, "C kernels are no operations of PyTorch, which alone are recorded"
    return decoder, spec


def make_worker(
    model: tuple[Decoder, ModelSpec],
    capture: Capture | None,
    backend: AttentionBackend | None = None,
    rungs: Sequence[int] = RUNGS,
    mixed: Sequence[int] = MIXED,
    adapters: RowAdapters | None = None,
) -> Worker:
    """A worker whose cache holds NaN wherever nothing has been written."""
    decoder, spec = model
    backend, groups = backend or StaticAttention(), spec.kv_groups
    cache = allocate_cache(
        backend, groups, num_blocks=[BLOCKS], swap_blocks=[0], block_size=SIZE, dtype=torch.float32, device=CPU
    )
    for tensor in cache.tensors(0):
        tensor.fill_(torch.nan)
    worker = Worker(decoder, backend, cache, StateTable(ROWS, LENGTH, SIZE, len(groups), CPU), adapters)
    if capture is not None:
        worker.capture(capture, list(rungs), mixed=mixed)
    return worker


def begin(row: int, prompt: list[int], adapter: str = "") -> StepPlan:
    """A plan that computes a whole prompt, in blocks of the row's own."""
    greedy = SamplingParams(max_tokens=99, temperature=0.0, logprobs=0)
    width = LENGTH // SIZE
    blocks = tuple(range(row * width, (row + 1) * width))
    return StepPlan(
        0,
        (NewRow(row, f"r{row}", tuple(prompt), len(prompt), greedy, adapter=adapter),),
        (TableChange(row, 0, 0, blocks),),
        chunks=(Chunk(row, 0, len(prompt), True),),
    )


class RandomPlans:
    """Plans drawn by number: rows come and go, their blocks and their order change, some steps are mixed."""

    def __init__(self, number: int) -> None:
        self.rng = random.Random(number)
        self.lengths: dict[int, int] = {}
        """Tokens known of each row, the last of them not yet computed."""
        self.free = list(range(BLOCKS))
        self.blocks: dict[int, list[int]] = {}
        self.begun: dict[int, tuple[int, int]] = {}
        """Tokens of a prompt that are computed, and all of it, of rows whose prompt is not computed whole."""

    def plan(self) -> StepPlan:
        rng = self.rng
        for row in [row for row, length in self.lengths.items() if length >= LENGTH or rng.random() < 0.04]:
            del self.lengths[row]
            self.free += self.blocks.pop(row)
        rng.shuffle(self.free)
        begun = [row for row in range(ROWS) if row not in {*self.lengths, *self.begun} and rng.random() < 0.3]
        news, chunks, changes = [], [], []
        decodes = rng.sample(sorted(self.lengths), len(self.lengths))
        grown = list(decodes)
        for row, (done, whole) in list(self.begun.items()) if rng.random() < 0.6 else []:
            chunks.append(self.chunk(row, done, whole))
            grown += [row] * (row in self.lengths)
        for row in begun if rng.random() < 0.4 or not self.lengths else []:
            prompt = [rng.randrange(64) for _ in range(rng.randint(1, 60))]
            way = SamplingParams(max_tokens=99, temperature=rng.choice([0.0, 1.0]), seed=row, logprobs=0)
            news.append(NewRow(row, f"r{row}", tuple(prompt), len(prompt), way))
            blocks = [self.free.pop() for _ in range(-(-len(prompt) // SIZE))]
            self.blocks[row] = blocks
            changes.append(TableChange(row, 0, 0, tuple(blocks)))
            chunks.append(self.chunk(row, 0, len(prompt)))
            grown += [row] * (row in self.lengths)
        starts = [self.lengths[row] - 1 for row in decodes]
        for row in grown:
            have, need = len(self.blocks[row]), -(-self.lengths[row] // SIZE)
            if need > have:
                more = [self.free.pop() for _ in range(need - have)]
                self.blocks[row] += more
                changes.append(TableChange(row, 0, have, tuple(more)))
            self.lengths[row] += 1
        return StepPlan(0, tuple(news), tuple(changes), decode_rows=decodes, decode_starts=starts, chunks=tuple(chunks))

    def chunk(self, row: int, done: int, whole: int) -> Chunk:
        """The rest of a prompt, or a part of it; a row whose prompt is computed decodes from the next plan on."""
        count = self.rng.choice([whole - done, self.rng.randint(1, whole - done)])
        self.begun.pop(row, None)
        if done + count < whole:
            self.begun[row] = (done + count, whole)
        else:
            self.lengths[row] = whole
        return Chunk(row, done, count, done + count == whole)


def assert_alike(got: StepResult, expected: StepResult) -> None:
    assert not got.errors and not expected.errors
    assert got.token_ids == expected.token_ids
    for index, (logprobs,) in expected.logprobs.items():
        assert got.logprobs[index][0].logprob == pytest.approx(logprobs.logprob, abs=1e-4)


@torch.inference_mode()
def poison(inputs: StepInputs, logits: torch.Tensor) -> None:
    """Everything a step must fill anew holds what would be wrong: other tokens, places, contexts, blocks and slots."""
    for tensor, worst in (
        (inputs.token_ids, 64),
        (inputs.positions, LENGTH),
        (inputs.cu_query_lens, len(inputs.token_ids)),
        (inputs.context_lens, LENGTH),
        (inputs.slot_mapping[0], BLOCKS * SIZE),
        (inputs.block_tables[0], BLOCKS),
    ):
        tensor.copy_(torch.randint(0, worst, tensor.shape))
    inputs.token_indices.fill_(1 << 40)
    logits.fill_(torch.nan)


@pytest.mark.parametrize("number", range(4))
def test_steps_by_graphs_are_as_eager_ones(model: tuple[Decoder, ModelSpec], number: int) -> None:
    """Decodes, and steps with whole prompts and parts of prompts."""
    capture = RecordedOperations()
    eager, graphed = make_worker(model, None), make_worker(model, capture)
    graphs = graphed._graphs
    assert graphs is not None and capture.recorded == len(RUNGS) + len(MIXED)
    plans, sizes = RandomPlans(number), set()
    for _ in range(60):
        plan = plans.plan()
        if not plan.num_tokens:
            continue
        for graph in graphs.all():
            assert graph.logits.dtype == model[0].logits_dtype
            poison(graph.inputs, graph.logits)
        before = capture.replays
        expected = eager.execute(plan)
        assert_alike(graphed.execute(plan), expected)
        largest = MIXED[-1] if plan.chunks else RUNGS[-1]
        assert capture.replays - before == (plan.num_tokens <= largest)
        sizes.add((bool(plan.chunks), plan.num_tokens))
    assert sum(chunks for chunks, _ in sizes) > 5
    assert sum(not chunks for chunks, _ in sizes) > 3
    for mine, theirs in zip(graphed._cache.tensors(0), eager._cache.tensors(0), strict=True):
        torch.testing.assert_close(mine[:BLOCKS], theirs[:BLOCKS], equal_nan=True, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("right", [True, False])
def test_graphs_of_mixed_steps_are_dropped_if_their_logits_are_others(
    model: tuple[Decoder, ModelSpec], caplog: pytest.LogCaptureFixture, right: bool
) -> None:
    capture = RecordedOperations()
    worker = make_worker(model, capture)
    graphs = worker._graphs
    assert graphs is not None
    if not right:
        graphs._mixed[0] = replace(graphs._mixed[0], replay=lambda: None)
    plan = MemoryPlan(MemoryNeed(0, 0, 1), 0, 0, BLOCKS, SIZE, LENGTH)
    setup = setup_of(model[1], "cuda", StaticAttention(), plan)
    setup = replace(setup, config=replace(setup.config, cudagraph_mode="full"))
    assert setup.resolved.mixed_graphs(setup.config)
    warm_up.check_mixed_graphs(worker, setup.config, setup.resolved, plan)
    assert len(graphs.mixed()) == (len(MIXED) if right else 0)
    assert ("such steps run without graphs" in caplog.text) == (not right)
    assert capture.replays == len(MIXED) - (not right)


def test_what_graphs_cannot_compute_runs_eagerly(model: tuple[Decoder, ModelSpec]) -> None:
    """Log probabilities of a prompt, more chunks than there is room for, and more tokens."""
    capture = RecordedOperations()
    worker = make_worker(model, capture, mixed=[16, 32])
    graphs, plan = worker._graphs, begin(0, [1, 2, 3])
    assert graphs is not None
    asked = replace(plan.new_rows[0], sampling=replace(plan.new_rows[0].sampling, prompt_logprobs=0))
    for each, replays in ((plan, 1), (replace(plan, new_rows=(asked,)), 0), (begin(0, list(range(40))), 0)):
        before = capture.replays
        result = worker.execute(each)
        assert capture.replays - before == replays
        assert len(result.token_ids) == 1
    small = graphs.graph_of(plan)
    assert small is not None and len(small.inputs.token_ids) == 16
    rows = [Chunk(row, 0, 1, True) for row in range(ROWS)]
    assert graphs.graph_of(replace(plan, chunks=tuple(rows))) is small
    assert graphs.graph_of(replace(plan, chunks=(*rows, Chunk(0, 0, 1, True)))) is None
    assert graphs.graph_of(replace(plan, decode_rows=[0] * 12, decode_starts=[0] * 12)) is None
    assert graphs.graph_of(replace(plan, chunks=(Chunk(0, 0, 17, True),))) is not small
    graphs.drop_mixed()
    assert graphs.graph_of(plan) is None


def test_every_batch_size_up_to_one_more_than_the_largest_rung(model: tuple[Decoder, ModelSpec]) -> None:
    capture = RecordedOperations()
    eager, graphed = make_worker(model, None), make_worker(model, capture)
    rng = random.Random(5)
    lengths = [rng.randint(1, 40) for _ in range(ROWS)]
    for row, length in enumerate(lengths):
        plan = begin(row, [rng.randrange(64) for _ in range(length)])
        assert_alike(graphed.execute(plan), eager.execute(plan))
    for count in [*range(1, ROWS + 1), *range(ROWS, 0, -1)]:
        rows = rng.sample(range(ROWS), count)
        plan = StepPlan(0, decode_rows=rows, decode_starts=[lengths[row] for row in rows])
        for row in rows:
            lengths[row] += 1
        before = capture.replays
        assert_alike(graphed.execute(plan), eager.execute(plan))
        assert capture.replays - before == (count <= RUNGS[-1])


def test_capturing_writes_nothing_into_the_cache(model: tuple[Decoder, ModelSpec]) -> None:
    worker = make_worker(model, RecordedOperations())
    for tensor in worker._cache.tensors(0):
        assert tensor[:BLOCKS].isnan().all()


def test_inputs_of_a_graph_hold_the_step_and_padding_and_nothing_else(model: tuple[Decoder, ModelSpec]) -> None:
    table = StateTable(ROWS, LENGTH, SIZE, 2, CPU)
    greedy = SamplingParams(max_tokens=9, temperature=0.0)
    for row in range(3):
        changes = tuple(TableChange(row, group, 0, (7 + row, 9 + group)) for group in range(2))
        table.apply(StepPlan(0, (NewRow(row, "r", (5, 6, 7, 8, 9), 5, greedy),), changes))
    plan = StepPlan(0, decode_rows=[2, 0, 1], decode_starts=[3, 4, 2])
    step = gather_inputs(plan, table).inputs
    whole = padding_inputs(table, 4)
    assert (whole.slot_mapping[0] == -1).all() and not whole.context_lens.any()
    poison(whole, torch.zeros(1))
    got = gather_inputs(plan, table, whole).inputs
    assert got is whole
    assert got.token_ids.tolist() == [8, 9, 7, 0]
    assert got.positions.tolist() == [3, 4, 2, 0]
    assert got.context_lens.tolist() == [4, 5, 3, 0]
    assert got.cu_query_lens.tolist() == [0, 1, 2, 3, 4]
    assert got.token_indices.tolist() == [0, 1, 2, 3]
    assert [slots.tolist() for slots in got.slot_mapping] == [[9 * 8 + 3, 7 * 8 + 4, 8 * 8 + 2, -1]] * 2
    assert [blocks[:, 0].tolist() for blocks in got.block_tables] == [[9, 7, 8, 0]] * 2
    assert got.query_lens_host == (1,) * 4
    assert got.context_lens_host == (LENGTH,) * 4, "the longest there can be: a graph runs steps of any length"
    for name in ("token_ids", "positions", "cu_query_lens", "context_lens", "token_indices"):
        assert getattr(got, name).dtype == getattr(step, name).dtype, name
    for name in ("block_tables", "slot_mapping"):
        assert [t.dtype for t in getattr(got, name)] == [t.dtype for t in getattr(step, name)], name


def test_inputs_of_a_graph_with_chunks_have_padding_in_both_parts_and_at_the_end() -> None:
    table = StateTable(ROWS, LENGTH, SIZE, 1, CPU)
    greedy = SamplingParams(max_tokens=9, temperature=0.0)
    for row in range(4):
        changes = (TableChange(row, 0, 0, (7 + row, 20 + row)),)
        table.apply(StepPlan(0, (NewRow(row, "r", tuple(range(12)), 12, greedy),), changes))
    chunks = (Chunk(1, 5, 4, False), Chunk(3, 0, 3, True))
    plan = StepPlan(0, decode_rows=[2], decode_starts=[9], chunks=chunks)
    whole = mixed_inputs(table, 16, decodes=3, chunks=4)
    assert (whole.slot_mapping[0] == -1).all() and not whole.context_lens.any()
    assert whole.cu_query_lens.tolist() == [0] * 7 + [16]
    poison(whole, torch.zeros(1))
    step = gather_inputs(plan, table, whole)
    got = step.inputs
    assert got is whole
    assert got.token_ids.tolist() == [9, 5, 6, 7, 8, 0, 1, 2] + [0] * 8
    assert got.positions.tolist() == [9, 5, 6, 7, 8, 0, 1, 2] + [0] * 8
    assert got.cu_query_lens.tolist() == [0, 1, 1, 1, 5, 8, 8, 16]
    assert got.context_lens.tolist() == [10, 0, 0, 9, 3, 0, 0]
    slots = [22 * 8 + 1, *(8 * 8 + i for i in (5, 6, 7)), 21 * 8, *(10 * 8 + i for i in range(3))]
    assert got.slot_mapping[0].tolist() == slots + [-1] * 8
    assert got.block_tables[0][:, :2].tolist() == [[9, 22], [0, 0], [0, 0], [8, 21], [10, 23], [0, 0], [0, 0]]
    assert got.token_indices[:2].tolist() == [0, 7], "the decode, and the chunk that ends its prompt"
    assert sorted(got.token_indices[2:].tolist()) == [0, 0, 4, 7, 15], "tokens that there are, for places of padding"
    assert (got.query_lens_host, got.context_lens_host) == ((1, 1, 1, 16, 0, 0, 0), (LENGTH,) * 7)
    assert (step.sampled.rows, step.sampled.positions) == ([2, 3], [10, 3])
    expected = gather_inputs(plan, table)
    assert torch.equal(step.sampled.rows_device, expected.sampled.rows_device)
    assert torch.equal(step.sampled.positions_device, expected.sampled.positions_device)


def test_the_stand_in_refuses_what_a_gpu_could_not_record(model: tuple[Decoder, ModelSpec]) -> None:
    """The decoder would have failed the tests above if it did such a thing; the torch backend does, and says so."""
    x = torch.arange(4)
    for work in (
        lambda: x.sum().item(),
        lambda: bool((x > 1).any()),
        lambda: x[x > 1],
        x.nonzero,
        lambda: x + torch.tensor([1, 2, 3, 4]),
    ):
        with pytest.raises(CannotBeRecordedError):
            RecordedOperations().capture([work])
    worker = make_worker(model, None)
    worker._backend = TorchAttention()
    assert not TorchAttention.graph_safe
    with pytest.raises(CannotBeRecordedError):
        worker.capture(RecordedOperations(), RUNGS)


def test_what_comes_before_a_replay_waits_for_nothing_either() -> None:
    """Rows, block tables and gathering: no number comes back to the host, and none goes out but through `to_device`."""
    table = StateTable(ROWS, LENGTH, SIZE, 1, CPU)
    changes = (TableChange(0, 0, 1, (5, -1)), TableChange(0, 0, 1, (6, 7)))
    plans = [
        *(begin(row, list(range(9))) for row in range(3)),
        StepPlan(0, table_changes=changes, decode_rows=[2, 0], decode_starts=[9, 9]),
        StepPlan(0, decode_rows=[2, 0], decode_starts=[10, 10], chunks=(Chunk(1, 3, 5, False), Chunk(1, 8, 1, True))),
    ]
    for plan in plans:
        with Recorder() as recorder:
            table.apply(plan)
            gather_inputs(plan, table)
        assert recorder.operations


def test_the_stand_in_repeats_operations_not_python() -> None:
    x, y, factors = torch.ones(3), torch.zeros(3), [2.0]
    [replay] = RecordedOperations().capture([lambda: y.copy_((x * factors[0]).view(3, 1).add(1)[:, 0])])
    factors[0] = 5.0
    x.fill_(10)
    replay()
    assert y.tolist() == [21.0, 21.0, 21.0]


def test_graphs_are_for_gpus_and_backends_that_can_and_can_be_turned_off() -> None:
    cuda, config = torch.device("cuda"), EngineConfig(model="x")
    assert uses_graphs(config, cuda, StaticAttention())
    assert not uses_graphs(replace(config, enforce_eager=True), cuda, StaticAttention())
    assert not uses_graphs(config, cuda, TorchAttention())
    assert not uses_graphs(config, CPU, StaticAttention())


def test_mixed_steps_are_graphs_where_layers_and_backend_allow_it() -> None:
    config, backend = EngineConfig(model="x", cudagraph_mode="full"), StaticAttention()
    full = KVGroupSpec("full", (0,), 1, 8)
    assert uses_mixed_graphs(config, backend, (full, replace(full, window=8)))
    assert not uses_mixed_graphs(EngineConfig(model="x"), backend, (full,))
    for other in (
        KVGroupSpec("recurrent", (1,), 1, 8, states=(StateSpec(4),)),
        KVGroupSpec("full", (1,), 1, 8, rows=(RowSpec("keys", 4),)),
        replace(full, latent=4),
    ):
        assert not uses_mixed_graphs(config, backend, (full, other))
    for name, backends in (("flashinfer", FlashInferAttention), ("varlen", VarlenAttention)):
        assert not backends.mixed_graph_safe, f"{name} reads the lengths of chunks on the host"


def test_what_graphs_may_take_is_planned_before_anything_is_loaded(model: tuple[Decoder, ModelSpec]) -> None:
    spec, cuda = model[1], torch.device("cuda")

    def need(**settings: object) -> int:
        config = EngineConfig(model="x", max_model_len=512, **settings)  # type: ignore[arg-type]
        return memory_need(resolved_of(spec, cuda, StaticAttention(), config.max_num_seqs or 256), config).graphs

    assert need(enforce_eager=True) == 0
    few, many = need(max_num_seqs=8), need(max_num_seqs=64)
    logits, nodes = 4 * spec.vocab_size, spec.num_layers * 4096
    assert few > 8 * logits + len(ladder(8)) * nodes
    assert many > few + 56 * logits + (len(ladder(64)) - len(ladder(8))) * nodes
    assert memory_need(resolved_of(spec, CPU, StaticAttention()), EngineConfig(model="x")).graphs == 0


def test_memory_of_graphs_is_not_the_caches() -> None:
    gib = 1 << 30
    limits = MemoryLimits(0.9, 16, 256, 4096, max_model_len=4096)
    machine = DeviceMemory(10 * gib, 10 * gib, "a GPU")
    need = MemoryNeed(6 * gib, gib, 128 << 10)
    without, plan = (plan_memory(replace(need, graphs=graphs), machine, limits) for graphs in (0, gib))
    assert without.kv_bytes - plan.kv_bytes == gib
    assert "CUDA graphs 1.0 GiB" in plan.describe()
    assert "CUDA graphs" not in without.describe()
    with pytest.raises(DoesNotFitError, match=r"CUDA graphs 1\.9 GiB.*--enforce-eager \(fits\)"):
        plan_memory(replace(need, graphs=int(1.9 * gib)), machine, limits)


def test_the_cache_is_sized_by_what_graphs_were_measured_to_take(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """From load to answers, with the stand-in for a GPU's graphs."""
    prompts = [[1, 2, 3], [7] * 20, [9, 8]]
    greedy = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)
    settings = {"device": "cpu", "dtype": "float32", "max_num_seqs": 8, "max_model_len": 128, "seed": 3}
    eager = LLM(str(tiny_model), **settings)
    expected = [answer.token_ids for answer in eager.generate(prompts, greedy)]
    eager.close()

    capture, reported, planned = RecordedOperations(), [], []
    replan = Sizing.replan

    def smaller(sizing: Sizing, graphs: int) -> MemoryPlan:
        planned.append(graphs)
        return replace(replan(sizing, graphs), num_kv_blocks=21)

    monkeypatch.setattr(Sizing, "replan", smaller)
    monkeypatch.setattr(ResolvedConfig, "mixed_graphs", lambda *_: [16, 48])
    monkeypatch.setattr(worker_setup, "_capture", lambda _: capture)
    monkeypatch.setattr(resolved_config, "select_backend", lambda *_, measure: StaticAttention())
    with caplog.at_level(logging.INFO):
        llm = LLM(str(tiny_model), progress=lambda *step: reported.append(step), **settings)
    assert planned == [RecordedOperations.BYTES * 6]
    assert capture.recorded == 2 * (len(ladder(8)) + 2) == 12
    assert capture.replays == 2, "each graph of steps with prompts, compared with an eager step"
    assert llm.info.num_kv_blocks == 21
    details = [detail for phase, _, detail in reported if phase == "warmup"]
    assert {"CUDA graphs: 0 of 6, a trial", "CUDA graphs: 6 of 6"} <= set(details)
    ratios = [ratio for _, ratio, _ in reported]
    assert ratios == sorted(ratios)
    assert "decodes of 4 batch sizes up to 8, steps with prompts of 2 sizes up to 48 tokens captured in" in caplog.text
    assert "such steps run without graphs" not in caplog.text
    assert "29.3 KiB measured" in caplog.text
    assert "memory plan, graphs measured: " in caplog.text
    assert [answer.token_ids for answer in llm.generate(prompts, greedy)] == expected
    assert capture.replays >= 2 + 12
    llm.close()


def test_memory_that_other_processes_free_meanwhile_is_no_measurement(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Freed(RecordedOperations):
        def taken(self) -> int:
            return -super().taken()

    planned: list[int] = []
    replan = Sizing.replan
    monkeypatch.setattr(Sizing, "replan", lambda sizing, graphs: planned.append(graphs) or replan(sizing, graphs))
    monkeypatch.setattr(worker_setup, "_capture", lambda _: Freed())
    monkeypatch.setattr(resolved_config, "select_backend", lambda *_, measure: StaticAttention())
    LLM(str(tiny_model), device="cpu", dtype="float32", max_num_seqs=8, max_model_len=128).close()
    assert len(planned) == 1 and planned[0] >= 0
    assert "CUDA graphs: not measured, as other processes freed memory" in caplog.text


def test_the_log_says_why_there_are_no_graphs_on_a_gpu(
    model: tuple[Decoder, ModelSpec], caplog: pytest.LogCaptureFixture
) -> None:
    plan = MemoryPlan(MemoryNeed(0, 0, 1), 0, 0, 9, 16, 64)
    with caplog.at_level(logging.INFO):
        assert worker_setup._capture(setup_of(model[1], "cuda", StaticAttention(), plan, enforce_eager=True)) is None
        assert worker_setup._capture(setup_of(model[1], "cuda", TorchAttention(), plan)) is None
        assert worker_setup._capture(setup_of(model[1], "cpu", StaticAttention(), plan)) is None
    assert caplog.messages == [
        "CUDA graphs are off: --enforce-eager",
        "CUDA graphs are off: attention backend torch cannot be captured",
    ]


def test_ranks_follow_the_first_ones_plan_and_backend(model: tuple[Decoder, ModelSpec]) -> None:
    class Others:
        """Ranks of which this one is the second."""

        alone = False

        def broadcast(self, x: torch.Tensor) -> torch.Tensor:
            return torch.full_like(x, 0) + torch.tensor([7, 48, 3, 5])

    setup = setup_of(model[1], "cpu", StaticAttention(), MemoryPlan(MemoryNeed(0, 0, 1), 0, 0, 9, 16, 64))
    agreed = worker_setup._broadcast_plan(setup, 5, Others())  # type: ignore[arg-type]
    assert (agreed.num_kv_blocks, agreed.max_model_len, agreed.window_seqs, agreed.swap_blocks) == (7, 48, 3, 5)
    on_gpu = setup_of(model[1], "cuda", StaticAttention(), agreed)
    on_gpu.resolved.backend.name = "varlen"
    assert config_of_ranks(on_gpu.config, on_gpu.resolved).attention_backend == "varlen"
    assert config_of_ranks(setup.config, setup.resolved).attention_backend == "auto"


@pytest.mark.parametrize("max_model_len", [2, 40, 4096])
def test_the_first_steps_meet_every_kernel_of_sampling_and_of_split_contexts(
    model: tuple[Decoder, ModelSpec], max_model_len: int
) -> None:
    """Kernels that they do not launch would be compiled in a user's step."""
    plans: list[StepPlan] = []
    worker = SimpleNamespace(execute=plans.append)
    plan = MemoryPlan(MemoryNeed(0, 0, 1), 0, 0, 9, 16, max_model_len)
    run_warm_up(worker, setup_of(model[1], "cuda", StaticAttention(), plan), plan)  # type: ignore[arg-type]
    params = [new.sampling for plan in plans for new in plan.new_rows]
    ways = {(asked.temperature > 0 and asked.top_p < 1, bool(needs_of(asked) & PENALIZES)) for asked in params}
    assert ways == {(True, True), (True, False), (False, True), (False, False)}
    longest = max(start for plan in plans for start in plan.decode_starts) + 1
    assert longest <= max_model_len
    [blocks] = {change.blocks for plan in plans for change in plan.table_changes}
    assert set(blocks) == {0} and len(blocks) == -(-longest // 16)
    contexts = {start + 1 for plan in plans for start in plan.decode_starts}
    assert {context > CUT for context in contexts} == ({False, True} if max_model_len > CUT else {False})
    ends = [chunk.start + chunk.num_tokens for plan in plans for chunk in plan.chunks if chunk.start]
    assert {end > CUT_OF_CHUNK for end in ends} == ({max_model_len > CUT_OF_CHUNK} if max_model_len > CUT else set())


def test_a_cpu_has_nothing_to_compile_and_computes_one_answer(model: tuple[Decoder, ModelSpec]) -> None:
    plans: list[StepPlan] = []
    worker, plan = SimpleNamespace(execute=plans.append), MemoryPlan(MemoryNeed(0, 0, 1), 0, 0, 9, 16, 4096)
    run_warm_up(worker, setup_of(model[1], "cpu", StaticAttention(), plan), plan)  # type: ignore[arg-type]
    assert [(len(plan.chunks), plan.decode_starts) for plan in plans] == [(1, []), (0, [15])]


def test_decodes_padded_to_a_rung_by_the_triton_kernels(tiny_model):
    """In a process whose Triton interprets."""
    path = Path(__file__).with_name("interpreted_decodes.py")
    root = path.parents[3]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join([str(root), *sys.path])}
    command = [sys.executable, str(path), str(tiny_model)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=root)
    assert result.returncode == 0, result.stdout[-8000:] + result.stderr[-2000:]
    assert result.stdout == "the same\n"
