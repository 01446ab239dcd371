"""The state of the running requests on the device: one row for each, which plans update by differences.

The scheduler names rows; a step's inputs are gathered from them on the device, and a sampled token is written back to
its row there, so that the next step never waits for the host. vLLM's model runner V2 has the same idea.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from octavo_engine.core.settings import LongContext
from octavo_engine.core.step import NewRow, StepPlan, TableChange
from octavo_engine.kernels.cpu.library import cpu_kernels
from octavo_engine.runner.device_copies import to_device
from octavo_engine.runner.sampling_table import SamplingTable


class StateTable:
    """Tokens [rows, max_model_len + 1] and, for each KV group, a block table [rows, max blocks], all int32, and the
    rows' sampling parameters.

    The last column of tokens holds the token that the last step of a full context samples, which is never an input.
    `seed` is the engine's seed: a request without a seed of its own draws by that and its id.
    """

    def __init__(
        self,
        rows: int,
        max_model_len: int,
        block_size: int,
        num_groups: int,
        device: torch.device,
        seed: int = 0,
        long_context: LongContext | None = None,
    ) -> None:
        self.block_size = block_size
        self.device = device
        self.max_blocks = -(-max_model_len // block_size)
        self.tokens = torch.zeros(rows, max_model_len + 1, dtype=torch.int32, device=device)
        self.block_tables = [
            torch.zeros(rows, self.max_blocks, dtype=torch.int32, device=device) for _ in range(num_groups)
        ]
        self.sampling = SamplingTable(rows, device)
        self._kernels = cpu_kernels() if device.type == "cpu" else None
        self._request_ids = [""] * rows
        self._seed = seed
        self._long_context = long_context
        self.second_texts = [0] * rows
        """The position at which the second text of each row's pair begins; 0 if there is none."""
        self.long_rows: list[bool] | None = None if long_context is None else [False] * rows
        """Whether each row is a long sequence; None if the model does not distinguish long sequences."""

    def apply(self, plan: StepPlan) -> None:
        """Write a plan's new requests, changed blocks and draft tokens into the table."""
        if plan.new_rows:
            self._begin(plan.new_rows)
        if plan.table_changes:
            for group, table in enumerate(self.block_tables):
                self._change(table, [change for change in plan.table_changes if change.group == group])

        if plan.drafts:
            self._write_drafts(plan)

    def _write_drafts(self, plan: StepPlan) -> None:
        """Write draft tokens behind the last known ones. Sampled tokens later overwrite all of them."""
        rows: list[int] = []
        positions: list[int] = []
        tokens: list[int] = []
        for index, drafts in plan.drafts.items():
            rows += [plan.decode_rows[index]] * len(drafts)
            positions += range(plan.decode_starts[index] + 1, plan.decode_starts[index] + 1 + len(drafts))
            tokens += drafts
        columns = to_device(rows + positions + tokens, self.device).view(3, -1)
        self.write_tokens(*columns)

    def _begin(self, new_rows: Sequence[NewRow]) -> None:
        for new in new_rows:
            tokens = to_device(new.token_ids, self.device, torch.int32)
            self.tokens[new.row, : len(new.token_ids)].copy_(tokens)
            self._request_ids[new.row] = new.request_id
            self.second_texts[new.row] = new.second_text
            if self._long_context is not None and self.long_rows is not None:
                self.long_rows[new.row] = self._long_context.applies(new.prompt_len, len(new.token_ids))
        self.sampling.begin(new_rows, [self._seed_of(new) for new in new_rows])

    def _seed_of(self, new: NewRow) -> int:
        """Return a request's seed; by default it is made of the engine's seed and the request's id."""
        return new.sampling.seed if new.sampling.seed is not None else self._seed ^ _hash64(new.request_id)

    def _change(self, table: Tensor, changes: list[TableChange]) -> None:
        # All changes of a step are written at once; of two changes of one entry the later one counts.
        blocks: dict[int, int] = {}
        for change in changes:
            first = change.row * self.max_blocks + change.index
            blocks.update(zip(range(first, first + len(change.blocks)), change.blocks, strict=True))
        entries = to_device(list(blocks.keys()), self.device)
        # An entry where the row holds no block (-1) is never read, but it too must be a valid block id.
        values = to_device(list(blocks.values()), self.device, torch.int32).clamp_(min=0)
        table.view(-1).index_copy_(0, entries, values)

    def request_id(self, row: int) -> str:
        """Return the id of the request that holds `row`."""
        return self._request_ids[row]

    def read_tokens(self, rows: Tensor, positions: Tensor) -> Tensor:
        """Return the tokens [R], int32, at `positions` [R] of `rows` [R]."""
        return self.tokens[rows, positions]

    def write_tokens(self, rows: Tensor, positions: Tensor, tokens: Tensor) -> None:
        """Write sampled `tokens` [R] at `positions` [R] of `rows` [R]."""
        if self._kernels is not None and tokens.dtype == torch.int64:
            self._kernels.write_tokens(rows, positions, tokens, self.tokens)
            return
        self.tokens.index_put_((rows, positions), tokens.to(torch.int32))


def _hash64(text: str) -> int:
    """Return the FNV-1a hash of `text`, which is the same in every process, unlike hash()."""
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) & ((1 << 64) - 1)
    return value
