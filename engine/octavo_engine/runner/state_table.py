"""Device-resident state of the running requests: one stable row for each, filled by differences.

The scheduler names rows; a step's inputs are gathered from them on the device, and a sampled token is written back to
its row there, so that the next step never waits for the host. The idea is that of vLLM's model runner V2.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from octavo_engine.core.request import SamplingParams
from octavo_engine.core.step import NewRow, StepPlan


class StateTable:
    """Tokens [rows, max_model_len] and, for each KV group, block tables [rows, max blocks], int32."""

    def __init__(self, rows: int, max_model_len: int, block_size: int, num_groups: int, device: torch.device) -> None:
        self.block_size = block_size
        self.device = device
        max_blocks = -(-max_model_len // block_size)
        self.tokens = torch.zeros(rows, max_model_len, dtype=torch.int32, device=device)
        self.block_tables = [torch.zeros(rows, max_blocks, dtype=torch.int32, device=device) for _ in range(num_groups)]
        self.sampling: list[SamplingParams | None] = [None] * rows
        self.prompt_lens = [0] * rows
        self._num_blocks = [[0] * num_groups for _ in range(rows)]

    def apply(self, plan: StepPlan) -> None:
        """Take in what a plan brings: new requests and new blocks."""
        for new in plan.new_rows:
            self._begin(new)
        for row in plan.rows:
            for group, blocks in enumerate(row.new_blocks):
                if blocks:
                    self._append_blocks(row.row, group, blocks)

    def _begin(self, new: NewRow) -> None:
        self.tokens[new.row, : len(new.token_ids)] = torch.tensor(new.token_ids, dtype=torch.int32)
        self.sampling[new.row] = new.sampling
        self.prompt_lens[new.row] = new.prompt_len
        self._num_blocks[new.row] = [0] * len(self.block_tables)

    def _append_blocks(self, row: int, group: int, blocks: Sequence[int]) -> None:
        start = self._num_blocks[row][group]
        self.block_tables[group][row, start : start + len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
        self._num_blocks[row][group] = start + len(blocks)

    def write_tokens(self, rows: torch.Tensor, positions: torch.Tensor, tokens: torch.Tensor) -> None:
        """Put sampled `tokens` [R] at `positions` [R] of `rows` [R]."""
        self.tokens[rows, positions] = tokens.to(torch.int32)
