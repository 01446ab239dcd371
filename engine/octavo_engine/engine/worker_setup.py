"""Sets up a worker: puts weights, KV cache and state table onto the device, and runs first steps to compile kernels."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import cycle

import torch

from octavo_engine.attention.backend import KVGroupSpec
from octavo_engine.capture import Capture, CUDAGraphs
from octavo_engine.config import EngineConfig
from octavo_engine.core.step import Chunk, NewRow, StepPlan, TableChange
from octavo_engine.engine.resolved_config import ResolvedConfig, long_context
from octavo_engine.errors import DoesNotFitError
from octavo_engine.model.collectives import ALONE, Collectives, connect
from octavo_engine.model.decoder import Decoder
from octavo_engine.model.dense_modules import DenseModules
from octavo_engine.model.loader import load_model
from octavo_engine.model.lora.adapter import AdapterLimits, AdapterWrite
from octavo_engine.model.lora.module_names import module_names
from octavo_engine.model.lora.slots import LoraSlots, lora_targets
from octavo_engine.model.pooling import pooling_of
from octavo_engine.model.quantization.e4m3 import FP8
from octavo_engine.model.shard import Shard
from octavo_engine.model.source import ModelFiles, Progress
from octavo_engine.model.spec import ModelSpec, MoESpec
from octavo_engine.runner.block_ops import measure_swap
from octavo_engine.runner.graphs import Captured, ladder
from octavo_engine.runner.kv_cache import KVCache, allocate_cache
from octavo_engine.runner.memory import MemoryPlan, device_memory
from octavo_engine.runner.row_adapters import RowAdapters
from octavo_engine.runner.state_table import StateTable
from octavo_engine.runner.worker import Worker
from octavo_engine.sampling_params import SamplingParams
from octavo_engine.sizes import format_size

log = logging.getLogger(__name__)


_PILOT_BLOCKS = 2
"""KV blocks of each group in the small cache with which the memory of CUDA graphs is measured."""
_WARM_UP = tuple(
    SamplingParams(max_tokens=2, temperature=temperature, top_p=top_p, repetition_penalty=penalty)
    for penalty in (1.0, 1.1)
    for temperature, top_p in ((0.8, 0.9), (0.0, 1.0))
)
"""Sampling parameters of the warm-up: sampled and greedy, which use different kernels, and each again with a penalty:
adjusted logits are float32, for which other kernels are compiled."""
_PROMPTS = (129, 64, 32, 16)
"""Lengths of the warm-up's prompts. Kernels choose tiles by the number of tokens, with borders at 16, 32, 64 and 128:
attention without grouped heads has small tiles up to 16, and the FP8 block product has tiles for each range."""
_WARM_UP_ADAPTER = "warm-up"
"""The digest of an adapter without modules."""
_MANY_ROWS = 129
"""A number of decodes with which a device is busy, so that contexts in a latent cache are not split."""
_LONG_ENOUGH = 512
"""A context of so many tokens is split into parts by every attention kernel."""
_END = 64
"""Tokens of a chunk at the end of such a context, so few that its context is split too."""


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """The inputs from which a worker is built."""

    config: EngineConfig
    files: ModelFiles
    resolved: ResolvedConfig
    plan: MemoryPlan
    shard: Shard
    meeting: str = ""
    """The address at which ranks find each other, if there are several."""
    replan: Callable[[int], MemoryPlan] | None = None
    """Recomputes the plan for a number of bytes of CUDA graphs; only the first rank has it, the others follow."""


@dataclass(frozen=True, slots=True)
class ReadyWorker:
    """A worker that has run its first steps, with the plan and the swap time measured for it."""

    worker: Worker
    plan: MemoryPlan
    """The memory plan that the worker was made by."""
    adapters: AdapterLimits | None
    """The limits of adapters; None if none are served."""
    swap_seconds: float
    """The seconds that swapping a block of every group out and in takes."""


def set_up_worker(setup: WorkerSetup, report: Progress) -> ReadyWorker:
    """Load the weights, measure CUDA graphs, allocate the KV cache in the memory that is left, capture the graphs.

    Graphs hold the cache's addresses, and the cache gets the memory that they leave. So they are captured twice, the
    first time with a cache of a few blocks, and the plan then has their measured size instead of an estimate.
    """
    resolved, plan = setup.resolved, setup.plan
    ranks = _meet(setup)
    capture = _capture(setup)
    try:
        decoder = load_model(setup.files, resolved.spec, resolved.device, resolved.dtype, report, ranks)
        slots = _make_slots(setup, decoder)
        if capture is not None:
            plan = _agreed(setup, _measure_graphs(setup, decoder, slots, capture, report), ranks)
        worker, cache = _make_worker(setup, decoder, slots, plan)
        report("warmup", 0.5, "first steps")
        _warm_up(worker, setup, plan)
        if capture is not None:
            _capture_all(worker, setup, capture, _half(report, 1))
            _check_mixed_graphs(worker, setup, plan)
    except (torch.OutOfMemoryError, MemoryError) as error:
        have, share = device_memory(resolved.device), setup.config.gpu_memory_utilization
        raise DoesNotFitError(
            f"memory ran out while loading, though the plan was {plan.describe()}; {format_size(have.free)} are free "
            f"on {have.name} now: lower --gpu-memory-utilization from {share:g} ({error})"
        ) from None
    limits = None if slots is None else _adapter_limits(setup, decoder, slots)
    return ReadyWorker(worker, plan, limits, measure_swap(cache))


def _meet(setup: WorkerSetup) -> Collectives:
    """Return the collectives that connect this rank with the others."""
    if setup.shard.size == 1:
        return ALONE
    symmetric = not setup.config.disable_custom_all_reduce
    return connect(setup.shard, setup.meeting, setup.resolved.device, setup.resolved.dtype, symmetric=symmetric)


def _make_slots(setup: WorkerSetup, decoder: Decoder) -> LoraSlots | None:
    """Return the adapter slots on the device; None if adapters are not served."""
    config = setup.config
    if not config.enable_lora:
        return None
    choice = lora_targets(
        decoder,
        setup.resolved.device,
        gguf=setup.files.gguf is not None,
        num_slots=config.max_loras,
        wanted=config.lora_target_modules,
    )
    return LoraSlots(decoder, choice, config.max_loras, config.max_lora_rank)


def _adapter_limits(setup: WorkerSetup, decoder: Decoder, slots: LoraSlots) -> AdapterLimits:
    names = module_names(decoder, slots.choice)
    return AdapterLimits(names, setup.config.max_lora_rank, half=setup.resolved.dtype == torch.float16)


def _capture(setup: WorkerSetup) -> Capture | None:
    device, backend, eager = setup.resolved.device, setup.resolved.backend, setup.config.enforce_eager
    if setup.resolved.uses_graphs(setup.config):
        return CUDAGraphs(device)
    if device.type == "cuda":
        reason = "--enforce-eager" if eager else f"attention backend {backend.name} cannot be captured"
        log.info("CUDA graphs are off: %s", reason)
    return None


def _capture_all(worker: Worker, setup: WorkerSetup, capture: Capture, captured: Captured) -> None:
    """Capture graphs of decodes, and of steps with prompts if they run as graphs."""
    resolved = setup.resolved
    worker.capture(capture, ladder(resolved.max_sampled), captured, resolved.mixed_graphs(setup.config))


def _measure_graphs(
    setup: WorkerSetup, decoder: Decoder, slots: LoraSlots | None, capture: Capture, report: Progress
) -> int:
    """Return the bytes that the first steps (memory of libraries) and the capture of all graphs take permanently.

    If other processes freed more than that meanwhile, nothing was measured, and the estimate is returned.
    """
    pilot = replace(setup.plan, num_kv_blocks=_PILOT_BLOCKS, swap_blocks=0)
    worker, _ = _make_worker(setup, decoder, slots, pilot)
    before = capture.taken()
    _warm_up(worker, setup, pilot)
    _capture_all(worker, setup, capture, _half(report, 0))
    taken, planned = capture.taken() - before, setup.plan.need.graphs
    if taken < 0:
        log.warning("CUDA graphs: not measured, as other processes freed memory; %s planned", format_size(planned))
        return planned
    log.info("CUDA graphs: %s measured, %s planned", format_size(taken), format_size(planned))
    return taken


def _check_mixed_graphs(worker: Worker, setup: WorkerSetup, plan: MemoryPlan) -> None:
    """Let the worker compare its graphs of mixed steps with an eager step of a decode and the end of a prompt.

    It uses the first two rows, and two blocks for each, which no request has yet. If there are not so many, nothing is
    compared.
    """
    config, resolved = setup.config, setup.resolved
    size, groups = plan.block_size, resolved.kv_groups
    blocks = min(plan.blocks_of(group.window, states=bool(group.states)) for group in groups)
    first, second, end = size + 3, size - 1, 5  # the second row begins its second block in the step that is compared
    longest = min(plan.max_model_len, config.max_num_batched_tokens)
    if not resolved.mixed_graphs(config) or resolved.max_num_seqs < 2 or blocks < 4 or longest <= first + second:
        return
    greedy = SamplingParams(max_tokens=2, temperature=0.0)
    tokens = tuple(token % resolved.spec.vocab_size for token in range(first + second + end))
    rows = (
        NewRow(0, "warm-up", tokens[:first], first, greedy),
        NewRow(1, "warm-up", tokens[first:], second + end, greedy),
    )
    tables = tuple(TableChange(row, group, 0, (2 * row, 2 * row + 1)) for row in (0, 1) for group in range(len(groups)))
    before = StepPlan(0, rows, tables, chunks=(Chunk(0, 0, first, True), Chunk(1, 0, second, False)))
    checked = StepPlan(0, decode_rows=[0], decode_starts=[first], chunks=(Chunk(1, second, end, True),))
    worker.check_mixed_graphs(before, checked)


def _half(report: Progress, half: int) -> Captured:
    """Return a callback that reports captured graphs as progress of the warm-up: 0 is its first half, 1 its second."""

    def captured(done: int, total: int) -> None:
        report("warmup", (half + done / total) / 2, f"CUDA graphs: {done} of {total}{'' if half else ', a trial'}")

    return captured


def _agreed(setup: WorkerSetup, graphs: int, ranks: Collectives) -> MemoryPlan:
    """Return the first rank's new plan in all ranks: no other rank needs more memory than the first."""
    plan = setup.plan if setup.replan is None else setup.replan(graphs)
    if ranks.alone:
        return plan
    device = setup.resolved.device
    agreed = [plan.num_kv_blocks, plan.max_model_len, plan.window_seqs, plan.swap_blocks]
    blocks, length, window_seqs, swap = ranks.broadcast(torch.tensor(agreed, device=device)).tolist()
    return replace(plan, num_kv_blocks=blocks, max_model_len=length, window_seqs=window_seqs, swap_blocks=swap)


def _make_worker(
    setup: WorkerSetup, decoder: Decoder, slots: LoraSlots | None, plan: MemoryPlan
) -> tuple[Worker, KVCache]:
    resolved, config = setup.resolved, setup.config
    cache = _allocate(setup, decoder, plan)
    groups = len(resolved.kv_groups)
    table = StateTable(
        resolved.max_num_seqs,
        plan.max_model_len,
        config.block_size,
        groups,
        resolved.device,
        config.seed,
        long_context(resolved.spec),
    )
    graph_tokens = max([resolved.max_sampled, *resolved.mixed_graphs(config)])
    adapters = None if slots is None else RowAdapters(slots, len(table.tokens), graph_tokens, resolved.device)
    pooling = pooling_of(setup.files, resolved.spec)
    decoder.dense = DenseModules(pooling.dense, resolved.device)
    return Worker(decoder, resolved.backend, cache, table, adapters, pooling.kind), cache


def _allocate(setup: WorkerSetup, decoder: Decoder, plan: MemoryPlan) -> KVCache:
    resolved, groups = setup.resolved, setup.resolved.kv_groups
    cache = allocate_cache(
        resolved.backend,
        groups,
        num_blocks=[plan.blocks_of(group.window, states=bool(group.states)) for group in groups],
        swap_blocks=[plan.swap_blocks_of(group.window, states=bool(group.states)) for group in groups],
        block_size=setup.config.block_size,
        dtype=resolved.kv_dtype,
        state_dtype=resolved.dtype,
        device=resolved.device,
    )
    return cache.scaled(decoder.kv_scales()) if resolved.kv_dtype == FP8 else cache


def _warm_up(worker: Worker, setup: WorkerSetup, plan: MemoryPlan) -> None:
    """Run prefills and decodes, so that no user's step is the first to compile a kernel or allocate its memory.

    A GPU's kernels are compiled, so it runs prompts of `_lengths` with the sampling parameters of `_WARM_UP`, with an
    empty adapter too if adapters are served, then decodes and a chunk of a context that is long enough to be split, and
    steps of many decodes. A CPU runs one prompt and one decode. All use row 0 and block 0, also as every block of a
    longer context: no request has them yet, and the first request that gets them overwrites them.
    """
    config, num_groups = setup.config, len(setup.resolved.kv_groups)
    compiles = setup.resolved.device.type == "cuda"
    short, long = (min(plan.max_model_len, size) - 1 for size in (config.block_size, _LONG_ENOUGH))
    most = min(config.max_num_batched_tokens, plan.max_model_len - 1)
    lengths = [min(length, most) for length in _lengths(setup.resolved.spec)] if compiles else [short]
    if min(short, config.max_num_batched_tokens) < 1:
        return
    blocks = (0,) * (max(long, *lengths) // config.block_size + 1)
    tables = tuple(TableChange(0, group, 0, blocks) for group in range(num_groups))
    if compiles and config.enable_lora:
        worker.write_adapter(AdapterWrite(0, _WARM_UP_ADAPTER, "", (), first=True, last=True))
        _run_prompts(worker, lengths, tables, _WARM_UP_ADAPTER)
        worker.execute(StepPlan(0, decode_rows=[0], decode_starts=[short]))
    _run_prompts(worker, lengths, tables)
    for start in (short, long) if compiles else (short,):
        worker.execute(StepPlan(0, decode_rows=[0], decode_starts=[start]))
    if compiles:
        count = min(_END, most, long)
        worker.execute(StepPlan(0, chunks=(Chunk(0, long - count, count, samples=False),)))
        for count in _decodes(setup.resolved.kv_groups):
            rows = min(setup.resolved.max_num_seqs, count)
            worker.execute(StepPlan(0, decode_rows=[0] * rows, decode_starts=[long] * rows))


def _run_prompts(worker: Worker, lengths: Sequence[int], tables: tuple[TableChange, ...], adapter: str = "") -> None:
    """Compute a prompt of each length in row 0, with the sampling parameters of `_WARM_UP` in turn."""
    for length, params in zip(lengths, cycle(_WARM_UP), strict=False):
        new = NewRow(0, "warm-up", (0,) * length, length, params, adapter=adapter)
        worker.execute(StepPlan(0, (new,), tables, chunks=(Chunk(0, 0, length, samples=True),)))


def _decodes(groups: Sequence[KVGroupSpec]) -> tuple[int, ...]:
    """Return numbers of decodes in a step, one for each way in which kernels split contexts into parts.

    Unlike caches of keys and values, latent caches are split into fewer parts the more sequences decode.
    """
    latent = any(group.latent is not None for group in groups)
    return (2, 4, 8, 16, 32, 64, 128, _MANY_ROWS) if latent else (_MANY_ROWS,)


def _lengths(spec: ModelSpec) -> list[int]:
    """Return prompt lengths for which kernels choose different tiles; experts' kernels choose by rows per expert."""
    from octavo_engine.kernels.moe import FEW_ROWS, SOME_ROWS

    mixtures = {layer.feed_forward for layer in spec.layers if isinstance(layer.feed_forward, MoESpec)}
    borders = {rows * moe.num_experts // moe.top_k + 1 for moe in mixtures for rows in (FEW_ROWS, SOME_ROWS)}
    return [*_PROMPTS, *sorted(borders)]
