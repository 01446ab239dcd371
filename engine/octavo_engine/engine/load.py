"""Loading: weights, cache and state table onto the device, and the first steps, which nobody should wait for."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from octavo_engine.config import EngineConfig, format_size
from octavo_engine.core.request import SamplingParams
from octavo_engine.core.step import Chunk, NewRow, StepPlan, TableChange
from octavo_engine.engine.target import Target
from octavo_engine.errors import DoesNotFitError
from octavo_engine.model.collectives import ALONE, connect
from octavo_engine.model.decoder import Decoder
from octavo_engine.model.quantization import FP8
from octavo_engine.model.shard import Shard
from octavo_engine.model.source import ModelFiles, Progress
from octavo_engine.model.weights import load_model
from octavo_engine.runner.block_ops import measure_swap
from octavo_engine.runner.kv_cache import KVCache, allocate_cache
from octavo_engine.runner.memory import MemoryPlan, device_memory
from octavo_engine.runner.state_table import StateTable
from octavo_engine.runner.worker import Worker


@dataclass(frozen=True, slots=True)
class Loading:
    """What to load, onto what."""

    config: EngineConfig
    files: ModelFiles
    target: Target
    plan: MemoryPlan
    shard: Shard
    meeting: str = ""
    """Where the ranks find each other, if there are several."""


def load_worker(loading: Loading, report: Progress) -> tuple[Worker, float]:
    """A worker that has done its first steps, and the seconds it takes to swap a block of every group out and in."""
    config, plan, target = loading.config, loading.plan, loading.target
    groups = len(target.spec.kv_groups)
    ranks = connect(loading.shard, loading.meeting, target.device) if loading.shard.size > 1 else ALONE
    try:
        decoder = load_model(loading.files, target.spec, target.device, target.dtype, report, ranks)
        cache = _allocate(loading, decoder)
        table = StateTable(
            config.max_num_seqs, plan.max_model_len, config.block_size, groups, target.device, config.seed
        )
    except (torch.OutOfMemoryError, MemoryError) as error:
        have = device_memory(target.device)
        raise DoesNotFitError(
            f"memory ran out while loading, though the plan was {plan.describe()}; {format_size(have.free)} are free "
            f"on {have.name} now: lower --gpu-memory-utilization from {config.gpu_memory_utilization:g} ({error})"
        ) from None
    worker = Worker(decoder, target.backend, cache, table)
    report("warmup", 0.0, "first steps")
    _warm_up(worker, min(config.block_size, config.max_num_batched_tokens, plan.max_model_len), groups)
    return worker, measure_swap(cache)


def _allocate(loading: Loading, decoder: Decoder) -> KVCache:
    target = loading.target
    cache = allocate_cache(
        target.backend,
        target.shard_spec.kv_groups,
        num_blocks=loading.plan.num_kv_blocks,
        swap_blocks=loading.plan.swap_blocks,
        block_size=loading.config.block_size,
        dtype=target.kv_dtype,
        device=target.device,
    )
    return cache.scaled(decoder.kv_scales()) if target.kv_dtype == FP8 else cache


def _warm_up(worker: Worker, tokens: int, num_groups: int) -> None:
    """A prefill and a decode, `tokens` in all, so that nothing is compiled or allocated first in a user's step.

    They use row 0 and block 0, which are nobody's yet and are written anew by whoever gets them.
    """
    if tokens < 2:
        return
    length = tokens - 1
    new = NewRow(0, "warm-up", (0,) * length, length, SamplingParams(max_tokens=2, temperature=0.8, top_p=0.9))
    tables = tuple(TableChange(0, group, 0, (0,)) for group in range(num_groups))
    worker.execute(StepPlan(0, (new,), tables, chunks=(Chunk(0, 0, length, samples=True),)))
    worker.execute(StepPlan(0, decode_rows=[0], decode_starts=[length]))
