"""Runs a plan's block operations: copies blocks within the cache (copy-on-write), and swaps them to CPU memory."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from octavo_engine.core.step import BlockOp, BlockOpKind
from octavo_engine.runner.device_copies import to_device
from octavo_engine.runner.kv_cache import KVCache

_MEASURED_BLOCKS = 16
_MEASURED_ROUNDS = 5


@dataclass(slots=True)
class BlockMove:
    """Blocks that may be copied at once: no target is the source or target of another copy."""

    kind: BlockOpKind
    group: int
    sources: list[int] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)


def batches(ops: Sequence[BlockOp]) -> Iterator[BlockMove]:
    """Group `ops` into as few moves as possible that have the same effect as running them one after another."""
    move: BlockMove | None = None
    written: set[int] = set()
    for op in ops:
        # A move reads all its sources before it writes, so only the blocks that it has written conflict. A swap's
        # sources and targets lie in different memories, so equal numbers are no conflict there.
        read = op.source if op.kind is BlockOpKind.COPY else -1
        alike = move is not None and (move.kind, move.group) == (op.kind, op.group)
        if move is None or not alike or read in written or op.target in written:
            if move is not None:
                yield move
            move, written = BlockMove(op.kind, op.group), set()
        move.sources.append(op.source)
        move.targets.append(op.target)
        written.add(op.target)
    if move is not None:
        yield move


def run_block_ops(cache: KVCache, ops: Sequence[BlockOp]) -> None:
    """Run `ops` in their order; on a GPU, enqueue them after all earlier launches without waiting."""
    for move in batches(ops):
        sources = cache.tensors(move.group, swap=move.kind is BlockOpKind.SWAP_IN)
        targets = cache.tensors(move.group, swap=move.kind is BlockOpKind.SWAP_OUT)
        _move(sources, targets, move)


def _move(sources: list[Tensor], targets: list[Tensor], move: BlockMove) -> None:
    if sources[0].device != targets[0].device:
        for source, target in zip(sources, targets, strict=True):
            for first, second in zip(move.sources, move.targets, strict=True):
                target[second].copy_(source[first], non_blocking=True)
        return
    if sources[0].dtype == torch.float8_e4m3fn:  # PyTorch does not index it on every device
        sources, targets = ([tensor.view(torch.uint8) for tensor in tensors] for tensors in (sources, targets))
    chosen = to_device(move.sources, sources[0].device)
    places = to_device(move.targets, sources[0].device)
    for source, target in zip(sources, targets, strict=True):
        target.view(len(target), -1).index_copy_(0, places, source.view(len(source), -1).index_select(0, chosen))


@torch.inference_mode()
def measure_swap(cache: KVCache) -> float:
    """Return the seconds for moving a block of every group to CPU memory and back; infinite without swap space.

    It moves the first few blocks, which no request may hold, and leaves their content as it was.
    """
    if not (cache.swap or cache.swapped_states or cache.swapped_rows):
        return float("inf")
    device = cache.tensors(0)[0].device
    groups = range(len(cache.groups))
    both = (cache.tensors(group, swap=swap)[0] for group in groups for swap in (False, True))
    count = min(_MEASURED_BLOCKS, *map(len, both))
    both_ways = [
        BlockOp(kind, group, block, block)
        for group in groups
        for kind in (BlockOpKind.SWAP_OUT, BlockOpKind.SWAP_IN)
        for block in range(count)
    ]
    run_block_ops(cache, both_ways)  # the first touch of the pages is not measured
    _wait(device)
    started = time.perf_counter()
    run_block_ops(cache, both_ways * _MEASURED_ROUNDS)
    _wait(device)
    return (time.perf_counter() - started) / (_MEASURED_ROUNDS * count)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
