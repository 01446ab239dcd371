"""Whole blocks moved within the cache, out of it and back: copy-on-write, and swapping to CPU memory."""

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
    """Blocks that may be moved all at once: no target is the source or target of another."""

    kind: BlockOpKind
    group: int
    sources: list[int] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)


def batches(ops: Sequence[BlockOp]) -> Iterator[BlockMove]:
    """`ops` in as few moves as give the same as one after another."""
    move: BlockMove | None = None
    written: set[int] = set()
    for op in ops:
        # Sources are all read before a target is written, so only blocks that the move has written conflict. Where
        # sources and targets are of different memories, equal numbers are no collision.
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
    """Do `ops` in their order; on a GPU, behind what was launched before and without waiting."""
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
    if sources[0].dtype == torch.float8_e4m3fn:  # not every device of PyTorch's indexes its numbers
        sources, targets = ([tensor.view(torch.uint8) for tensor in tensors] for tensors in (sources, targets))
    chosen = to_device(move.sources, sources[0].device)
    places = to_device(move.targets, sources[0].device)
    for source, target in zip(sources, targets, strict=True):
        target.view(len(target), -1).index_copy_(0, places, source.view(len(source), -1).index_select(0, chosen))


@torch.inference_mode()
def measure_swap(cache: KVCache) -> float:
    """Seconds it takes to move one block of every group to CPU memory and back; infinite without swap space.

    It moves the first few blocks, which must be unowned, and leaves them as they were.
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
    run_block_ops(cache, both_ways)  # pages are touched for the first time
    _wait(device)
    started = time.perf_counter()
    run_block_ops(cache, both_ways * _MEASURED_ROUNDS)
    _wait(device)
    return (time.perf_counter() - started) / (_MEASURED_ROUNDS * count)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
