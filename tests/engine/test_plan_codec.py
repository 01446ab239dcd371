"""A plan goes to other ranks as bytes: the same plan comes out, in next to no time."""

from __future__ import annotations

import time

from octavo_engine.core.sampling_params import SamplingParams
from octavo_engine.core.step import BlockOp, BlockOpKind, Chunk, NewRow, StepPlan, TableChange
from octavo_engine.runner.plan_codec import decode_plan, encode_plan


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


def test_a_step_of_256_decodes_costs_little():
    rows = list(range(256))
    changes = tuple(TableChange(row, 0, 60, (row * 7,)) for row in range(0, 256, 16))
    plan = StepPlan(1000, table_changes=changes, decode_rows=rows, decode_starts=[1000 + row for row in rows])
    best = float("inf")
    for _ in range(200):
        started = time.perf_counter()
        decode_plan(encode_plan(plan))
        best = min(best, time.perf_counter() - started)
    print(f"encoded and decoded in {best * 1e6:.0f} us")
    assert best < 200e-6
