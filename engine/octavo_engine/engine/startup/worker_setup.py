"""Sets up a worker: puts weights, KV cache and state table onto the device, captures graphs, runs the first steps."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from octavo_engine.capture import Capture, CUDAGraphs
from octavo_engine.config import EngineConfig
from octavo_engine.engine.startup.resolved_config import ResolvedConfig, long_context
from octavo_engine.engine.startup.warm_up import check_mixed_graphs, warm_up
from octavo_engine.errors import DoesNotFitError
from octavo_engine.model.checkpoint.progress import Progress
from octavo_engine.model.configuration.pooling import pooling_of
from octavo_engine.model.decoder import Decoder
from octavo_engine.model.layers.embeddings.dense_modules import DenseModules
from octavo_engine.model.loader import load_model
from octavo_engine.model.lora.adapter_files import AdapterLimits
from octavo_engine.model.lora.module_names import module_names
from octavo_engine.model.lora.slots import LoraSlots, lora_targets
from octavo_engine.model.quantization.e4m3 import FP8
from octavo_engine.model.source import ModelFiles
from octavo_engine.model.tensor_parallel.collectives import ALONE, Collectives, connect
from octavo_engine.model.tensor_parallel.shard import Shard
from octavo_engine.runner.block_ops import measure_swap
from octavo_engine.runner.graphs import Captured, ladder
from octavo_engine.runner.kv_cache import KVCache, allocate_cache
from octavo_engine.runner.memory.device_memory import device_memory
from octavo_engine.runner.memory.memory_plan import MemoryPlan
from octavo_engine.runner.out_of_memory import as_out_of_memory
from octavo_engine.runner.row_adapters import RowAdapters
from octavo_engine.runner.state_table import StateTable
from octavo_engine.runner.worker import Worker
from octavo_engine.sizes import format_size

log = logging.getLogger(__name__)


_PILOT_BLOCKS = 2
"""KV blocks of each group in the small cache with which the memory of CUDA graphs is measured."""


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """The inputs from which a worker is built."""

    config: EngineConfig
    files: ModelFiles
    resolved: ResolvedConfig
    plan: MemoryPlan
    shard: Shard
    rendezvous: str = ""
    """The path of the file through which ranks find each other, if there are several."""
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
    ranks = _connect_ranks(setup)
    capture = _capture(setup)
    try:
        with as_out_of_memory():
            decoder = load_model(setup.files, resolved.spec, resolved.device, resolved.dtype, report, ranks)
            slots = _make_slots(setup, decoder)
            if capture is not None:
                plan = _broadcast_plan(setup, _measure_graphs(setup, decoder, slots, capture, report), ranks)
            worker, cache = _make_worker(setup, decoder, slots, plan)
            report("warmup", 0.5, "first steps")
            warm_up(worker, setup.config, resolved, plan)
            if capture is not None:
                _capture_all(worker, setup, capture, _half(report, 1))
                check_mixed_graphs(worker, setup.config, resolved, plan)
    except torch.OutOfMemoryError as error:
        have, share = device_memory(resolved.device), setup.config.gpu_memory_utilization
        raise DoesNotFitError(
            f"memory ran out while loading: the plan was {plan.describe()}, and {format_size(have.free)} are free on "
            f"{have.name} now; lower --gpu-memory-utilization, which is {share:g} ({error})"
        ) from None
    limits = None if slots is None else _adapter_limits(setup, decoder, slots)
    return ReadyWorker(worker, plan, limits, measure_swap(cache))


def _connect_ranks(setup: WorkerSetup) -> Collectives:
    """Return the collectives that connect this rank with the others."""
    if setup.shard.size == 1:
        return ALONE
    symmetric = not setup.config.disable_custom_all_reduce
    return connect(setup.shard, setup.rendezvous, setup.resolved.device, setup.resolved.dtype, symmetric=symmetric)


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
    warm_up(worker, setup.config, setup.resolved, pilot)
    _capture_all(worker, setup, capture, _half(report, 0))
    taken, planned = capture.taken() - before, setup.plan.need.graphs
    if taken < 0:
        log.warning("CUDA graphs: not measured, as other processes freed memory; %s planned", format_size(planned))
        return planned
    log.info("CUDA graphs: %s measured, %s planned", format_size(taken), format_size(planned))
    return taken


def _half(report: Progress, half: int) -> Captured:
    """Return a callback that reports captured graphs as progress of the warm-up: 0 is its first half, 1 its second."""

    def captured(done: int, total: int) -> None:
        report("warmup", (half + done / total) / 2, f"CUDA graphs: {done} of {total}{'' if half else ', a trial'}")

    return captured


def _broadcast_plan(setup: WorkerSetup, graphs: int, ranks: Collectives) -> MemoryPlan:
    """Return in all ranks the plan that the first rank has recomputed: no other rank needs more memory."""
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
