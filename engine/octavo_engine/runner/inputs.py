"""From a plan to the tensors of one forward pass, gathered from the state table on the device."""

from __future__ import annotations

import torch

from octavo_engine.attention.backend import StepInputs
from octavo_engine.core.step import StepPlan
from octavo_engine.runner.state_table import StateTable


def gather_inputs(plan: StepPlan, table: StateTable) -> StepInputs:
    """The inputs of `plan`; the host sends a few integers a row, everything a token is read on the device."""
    device, size = table.device, table.block_size
    host = torch.tensor([(row.row, row.start, row.num_tokens) for row in plan.rows], dtype=torch.int64)
    rows, starts, counts = host.to(device).unbind(1)
    ends = counts.cumsum(0)
    total = plan.num_tokens
    sequence = torch.repeat_interleave(torch.arange(len(plan.rows), device=device), counts, output_size=total)
    positions = torch.arange(total, device=device) - (ends - counts)[sequence] + starts[sequence]
    row_of_token = rows[sequence]
    longest = max(row.start + row.num_tokens for row in plan.rows)
    block_tables = tuple(blocks[rows, : -(-longest // size)] for blocks in table.block_tables)
    slots = tuple(
        blocks[row_of_token, positions // size].to(torch.int64) * size + positions % size
        for blocks in table.block_tables
    )
    sampled = torch.tensor([row.samples for row in plan.rows], device=device)
    return StepInputs(
        token_ids=table.tokens[row_of_token, positions],
        positions=positions,
        cu_query_lens=torch.nn.functional.pad(ends, (1, 0)).to(torch.int32),
        context_lens=(starts + counts).to(torch.int32),
        block_tables=block_tables,
        slot_mapping=slots,
        sample_rows=(ends - 1)[sampled],
        query_lens_host=tuple(row.num_tokens for row in plan.rows),
        context_lens_host=tuple(row.start + row.num_tokens for row in plan.rows),
    )
