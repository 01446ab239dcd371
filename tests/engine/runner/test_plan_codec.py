"""A plan is sent to other ranks as bytes: they decode the same plan, in few calls."""

from __future__ import annotations

import sys

from octavo_engine.core.step import BlockOp, BlockOpKind, Chunk, NewRow, StepPlan, TableChange
from octavo_engine.runner.ranks.plan_codec import decode_plan, encode_plan
from octavo_engine.sampling_params import SamplingParams


def test_every_part_of_a_plan_arrives():
    sampling = SamplingParams(max_tokens=5, seed=1 << 62, logit_bias=((3, -1.5),), stop_token_ids=(2, 7), logprobs=0)
    plan = StepPlan(
        9,
        new_rows=(NewRow(4, "request é", (1, 2, 3), 2, sampling),),
        table_changes=(TableChange(4, 0, 1, (8, -1)),),
        block_ops=(BlockOp(BlockOpKind.SWAP_IN, 0, 5, 6),),
        decode_rows=[0, 1],
        decode_starts=[17, 900],
        drafts={1: (5, 6)},
        chunks=(Chunk(4, 0, 3, samples=True),),
    )
    assert decode_plan(encode_plan(plan)) == plan


def calls_for(decodes: int) -> int:
    """Return how many functions Python calls to encode and decode a step of so many decodes."""
    rows = list(range(decodes))
    changes = tuple(TableChange(row, 0, 60, (row * 7,)) for row in range(0, decodes, 16))
    plan = StepPlan(1000, table_changes=changes, decode_rows=rows, decode_starts=[1000 + row for row in rows])
    decode_plan(encode_plan(plan))  # what is imported or made once is there
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        decode_plan(encode_plan(plan))
    finally:
        sys.setprofile(None)
    return calls


def test_a_step_of_256_decodes_costs_little_more_than_one_of_32():
    """Rows are no objects of their own: only what changes in block tables costs calls, and 14 more rows have that."""
    few, many = calls_for(32), calls_for(256)
    assert many - few <= 14 * 8, (few, many)
    assert few < 100
