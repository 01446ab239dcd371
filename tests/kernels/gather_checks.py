"""Checks of the kernel that gathers a step's inputs from the state table's rows."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import partial

import torch
from torch import Tensor

from octavo_engine.attention.backend import StepInputs
from octavo_engine.core.step import Chunk, StepPlan
from octavo_engine.kernels.gather import gather_kernel
from octavo_engine.runner import inputs as torch_inputs
from octavo_engine.runner.inputs import GatheredStep, gather_inputs
from octavo_engine.runner.state_table import StateTable
from tests.kernels.check import Build, Check

ROWS, LENGTH = 9, 8192


def make_table(device: torch.device, block_size: int, groups: int) -> StateTable:
    """A table in which every token and every block differs from all others."""
    table = StateTable(ROWS, LENGTH, block_size, groups, device)
    table.tokens.copy_(torch.randint(1, 1 << 30, table.tokens.shape))
    for blocks in table.block_tables:
        blocks.copy_(torch.randint(1, 1 << 20, blocks.shape))
    return table


def _poisoned(table: StateTable, rows: int) -> StepInputs:
    """Buffers of `rows` decodes full of what cannot be."""

    def wrong(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.full(shape, -(1 << 30), dtype=dtype, device=table.device)

    return StepInputs(
        token_ids=wrong(rows),
        positions=wrong(rows, dtype=torch.int64),
        cu_query_lens=wrong(rows + 1),
        context_lens=wrong(rows),
        block_tables=tuple(wrong(rows, table.max_blocks) for _ in table.block_tables),
        slot_mapping=tuple(wrong(rows, dtype=torch.int64) for _ in table.block_tables),
        token_indices=wrong(rows, dtype=torch.int64),
        query_lens_host=(1,) * rows,
        context_lens_host=(LENGTH,) * rows,
    )


def _assert_same(got: GatheredStep, expected: GatheredStep) -> None:
    for one, other in ((got.sampled, expected.sampled), (got.inputs, expected.inputs)):
        for field in fields(one):
            mine, wanted = getattr(one, field.name), getattr(other, field.name)
            if isinstance(wanted, Tensor):
                mine, wanted = (mine,), (wanted,)
            if isinstance(wanted, tuple) and wanted and isinstance(wanted[0], Tensor):
                for a, b in zip(mine, wanted, strict=True):
                    assert a.dtype == b.dtype, field.name
                    assert torch.equal(a.cpu(), b.cpu()), field.name
            else:
                assert mine == wanted, field.name


def _by_torch(plan: StepPlan, table: StateTable) -> GatheredStep:
    """Gather as a CPU does."""
    return torch_inputs._by_torch(plan, table)


def _any_plan(
    device: torch.device, block_size: int, groups: int, decodes: int, chunks: list[tuple[int, int, bool]]
) -> None:
    """Against PyTorch's own way. Chunks are (start, tokens, samples)."""
    table = make_table(device, block_size, groups)
    rows = torch.randperm(ROWS).tolist()
    starts = [0, LENGTH - 1, block_size - 1, block_size, *torch.randint(LENGTH, (decodes,)).tolist()][:decodes]
    plan = StepPlan(
        1,
        decode_rows=rows[:decodes],
        decode_starts=starts,
        chunks=tuple(Chunk(row, *chunk) for row, chunk in zip(rows[decodes:], chunks, strict=False)),
    )
    _assert_same(gather_inputs(plan, table), _by_torch(plan, table))


def _into_buffers_that_are_too_long(device: torch.device, block_size: int) -> None:
    """Check buffers like a CUDA graph's: the step's rows are those of any other step, the others padding."""
    table = make_table(device, block_size, 2)
    plan = StepPlan(1, decode_rows=[4, 0, 7], decode_starts=[70, 0, 333])
    buffers = _poisoned(table, 8)
    got = gather_inputs(plan, table, buffers)
    assert got.inputs is buffers
    padding = {
        "token_ids": buffers.token_ids[3:],
        "positions": buffers.positions[3:],
        "context_lens": buffers.context_lens[3:],
        **{f"blocks {i}": blocks[3:, : 334 // block_size] for i, blocks in enumerate(buffers.block_tables)},
    }
    for name, values in padding.items():
        assert not values.any(), name
    assert all((slots[3:] == -1).all() for slots in buffers.slot_mapping)
    assert buffers.cu_query_lens.tolist() == list(range(9)), "one query token each"
    width = -(-334 // block_size)
    assert all((blocks[:, width:] == -(1 << 30)).all() for blocks in buffers.block_tables), "left as it was"
    assert buffers.token_indices.tolist() == list(range(8)), "of padding, too: a token that there is"
    step = replace(
        buffers,
        token_ids=buffers.token_ids[:3],
        positions=buffers.positions[:3],
        cu_query_lens=buffers.cu_query_lens[:4],
        context_lens=buffers.context_lens[:3],
        block_tables=tuple(blocks[:3, :width] for blocks in buffers.block_tables),
        slot_mapping=tuple(slots[:3] for slots in buffers.slot_mapping),
        token_indices=buffers.token_indices[:3],
        query_lens_host=(1,) * 3,
        context_lens_host=(71, 1, 334),
        all_sampled=True,
    )
    _assert_same(replace(got, inputs=step), _by_torch(plan, table))


def _into_buffers_of_mixed_steps(device: torch.device, block_size: int) -> None:
    """Check buffers of a CUDA graph with chunks: what a CPU writes into them, padding included."""
    table = make_table(device, block_size, 2)
    chunks = tuple(Chunk(row, *chunk) for row, chunk in zip((5, 1, 3), _CHUNKS[::2], strict=True))
    plan = StepPlan(1, decode_rows=[4, 0, 7], decode_starts=[70, 0, 333], chunks=chunks)
    host = {"query_lens_host": (1,) * 8 + (2048,) + (0,) * 6, "context_lens_host": (LENGTH,) * 15}
    starts = torch.full((16,), -(1 << 30), dtype=torch.int32, device=device)
    short = _poisoned(table, 15)
    buffers = [
        replace(_poisoned(table, 2048), cu_query_lens=starts.clone(), context_lens=short.context_lens.clone(), **host)
        for _ in range(2)
    ]
    buffers = [
        replace(
            each,
            token_indices=short.token_indices.clone(),
            block_tables=tuple(blocks.clone() for blocks in short.block_tables),
        )
        for each in buffers
    ]
    got = gather_inputs(plan, table, buffers[0])
    step = _by_torch(plan, table)
    _assert_same(got, replace(step, inputs=torch_inputs._copied(plan, step.inputs, buffers[1])))


_CHUNKS = [(0, 1, True), (17, 2500, False), (1024, 1024, True), (LENGTH - 1, 1, True), (3, 40, False)]
CHECKS = [
    *(
        Check(
            f"any_plan-block{size}-groups{groups}-{decodes}-decodes-{chunks}-chunks",
            partial(_any_plan, block_size=size, groups=groups, decodes=decodes, chunks=_CHUNKS[:chunks]),
        )
        for size in (16, 24, 128)
        for groups in (1, 3)
        for decodes, chunks in ((1, 0), (9, 0), (0, 2), (4, 5))
    ),
    *(
        Check(f"into_buffers_that_are_too_long-{size}", partial(_into_buffers_that_are_too_long, block_size=size))
        for size in (16, 64)
    ),
    Check("into_buffers_of_mixed_steps", partial(_into_buffers_of_mixed_steps, block_size=16)),
]

_INT64 = ("columns", "positions", "slots", "token_indices", "state_rows", "sample_positions")
_INT32 = ("tokens", "table", "token_ids", "cu_query_lens", "context_lens", "block_table")
BUILDS = [
    Build(
        f"gather-first={first}",
        gather_kernel,
        dict.fromkeys(_INT64, "*i64")
        | dict.fromkeys(_INT32, "*i32")
        | dict.fromkeys(("token_stride", "table_stride", "output_stride", "width"), "i32"),
        {"BLOCK_SIZE": 16, "FIRST": first, "TILE": 1024},
        max_registers=registers,
        max_shared=3 * 1024,
        max_loop={"all": loop},
    )
    for first, registers, loop in ((True, 120, 460), (False, 72, 336))
]
