"""Gathers the input tensors of one forward pass from a plan and the state table on the device.

The host sends a few integers a row, in one copy; every token and block id is read on the device, by one kernel where
Triton runs (kernels/gather.py) or C kernels do (kernels/cpu/gather.c), else by PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

from octavo_engine.attention.backend import StepInputs
from octavo_engine.core.step import StepPlan
from octavo_engine.kernels.cpu.library import cpu_kernels
from octavo_engine.kernels.gather_outputs import GatherOutputs
from octavo_engine.kernels.triton_support import triton_runs_on
from octavo_engine.runner.device_copies import to_device
from octavo_engine.runner.sampling_table import SampledRows
from octavo_engine.runner.state_table import StateTable


@dataclass(frozen=True, slots=True)
class GatheredStep:
    """A step's inputs, and the rows of the state table that it samples: decoding rows first, then chunks' rows."""

    inputs: StepInputs
    sampled: SampledRows


def gather_inputs(plan: StepPlan, table: StateTable, into: StepInputs | None = None) -> GatheredStep:
    """Return the inputs of a plan that computes at least one token.

    If `into` is given, the inputs are written into its tensors, which are those of a CUDA graph with room for the plan
    (runner/graphs.py). What remains becomes padding: tokens of sequences without context, whose slot is -1.
    """
    if (kernel := _kernel_for(table.device)) is not None:
        step = _by_kernel(plan, table, into, kernel)
    else:
        step = _by_torch(plan, table)
        step = step if into is None else replace(step, inputs=_copied(plan, step.inputs, into))
    if any(table.second_texts[chunk.row] for chunk in plan.chunks):
        step = replace(step, inputs=_with_second_texts(step.inputs, plan, table))
    if table.long_rows is None:
        return step
    return replace(step, inputs=_with_lengths(step.inputs, plan, table.long_rows, table.device))


def _with_lengths(inputs: StepInputs, plan: StepPlan, long_rows: list[bool], device: torch.device) -> StepInputs:
    """Return `inputs` with flags for the tokens of long sequences, written into its own flags if it has some."""
    flags = [long_rows[row] for row in decode_tokens(plan)[0]]
    for chunk in plan.chunks:
        flags += [long_rows[chunk.row]] * chunk.num_tokens
    long_context = to_device(flags, device, torch.int32).bool()
    if inputs.long_context is None:
        return replace(inputs, long_context=long_context)
    inputs.long_context[: len(flags)].copy_(long_context)
    return inputs


def _with_second_texts(inputs: StepInputs, plan: StepPlan, table: StateTable) -> StepInputs:
    """Return `inputs` with flags for the tokens that belong to the second text of a pair."""
    flags = [False] * plan.num_decode_tokens
    for chunk in plan.chunks:
        second = table.second_texts[chunk.row] or chunk.start + chunk.num_tokens
        flags += [position >= second for position in range(chunk.start, chunk.start + chunk.num_tokens)]
    return replace(inputs, second_text=to_device(flags, table.device, torch.int32).bool())


def decode_tokens(plan: StepPlan) -> tuple[list[int], list[int]]:
    """Return the row and the position of each token of the decoding rows, drafts included.

    A draft is computed as a decode of its own, of the same row's sequence with one more token: every layer writes the
    keys and values of all tokens before it attends, so each draft sees those before it. So drafts need no attention
    kernels and no CUDA graphs of their own.
    """
    if not plan.drafts:
        return plan.decode_rows, plan.decode_starts
    rows: list[int] = []
    starts: list[int] = []
    for index, (row, start) in enumerate(zip(plan.decode_rows, plan.decode_starts, strict=True)):
        count = 1 + len(plan.drafts.get(index, ()))
        rows += [row] * count
        starts += range(start, start + count)
    return rows, starts


@dataclass(frozen=True, slots=True)
class _Sequences:
    """The sequences of a step as the host knows them, decodes before chunks; a row of -1 is padding."""

    rows: list[int]
    starts: list[int]
    """The position of each one's first token of the step."""
    counts: list[int]
    """The number of each one's tokens of the step."""
    sampling: list[int]
    """The indices of those that sample."""

    @classmethod
    def of(cls, plan: StepPlan, into: StepInputs | None) -> _Sequences:
        """List a plan's sequences, with padding where `into` has room for more."""
        rows, starts = map(list, decode_tokens(plan))
        sequences = cls(rows, starts, [1] * len(rows), list(range(len(rows))))
        if into is not None:  # where the last sequence has the tokens of padding, the others have none
            sequences._pad(into.num_decodes - len(rows), 0 if into.has_chunks else 1)
        for chunk in plan.chunks:
            if chunk.samples:
                sequences.sampling.append(len(rows))
            rows.append(chunk.row)
            starts.append(chunk.start)
            sequences.counts.append(chunk.num_tokens)
        if into is not None and into.has_chunks:
            sequences._pad(len(into.context_lens) - len(rows), 0)
            sequences.counts[-1] += len(into.token_ids) - plan.num_tokens
        return sequences

    def _pad(self, sequences: int, tokens: int) -> None:
        self.rows.extend([-1] * sequences)
        self.starts.extend([0] * sequences)
        self.counts.extend([tokens] * sequences)

    def ends(self) -> list[int]:
        """Return the number of tokens of each sequence after the step; 0 for padding."""
        columns = zip(self.rows, self.starts, self.counts, strict=True)
        return [0 if row < 0 else start + count for row, start, count in columns]

    def places(self, *, padded: bool) -> list[int]:
        """Return each sequence's place among those that sample, -1 if it does not; all have one in a `padded` step."""
        places = [-1] * len(self.rows)
        for place, sequence in enumerate(self.sampling):
            places[sequence] = place
        if padded:
            others = (sequence for sequence, place in enumerate(places) if place < 0)
            for place, sequence in enumerate(list(others), len(self.sampling)):
                places[sequence] = place
        return places


def _kernel_for(device: torch.device) -> Callable[..., None] | None:
    """Return the function `gather_step` for `device`; None if no kernel can run there."""
    if triton_runs_on(device):
        from octavo_engine.kernels.gather import gather_step

        return gather_step
    kernels = cpu_kernels() if device.type == "cpu" else None
    return None if kernels is None else kernels.gather_step


def _by_kernel(
    plan: StepPlan, table: StateTable, into: StepInputs | None, gather_step: Callable[..., None]
) -> GatheredStep:
    """Gather the inputs of any plan with a kernel; decodes come before chunks."""
    sequences = _Sequences.of(plan, into)
    rows, sampling, ends = sequences.rows, sequences.sampling, sequences.ends()
    width = -(-max(ends) // table.block_size)
    inputs = _empty_inputs(table, sequences.counts, ends, len(sampling), width) if into is None else into
    columns = [*rows, *sequences.starts, *sequences.places(padded=into is not None)]
    columns += accumulate(sequences.counts, initial=0)
    samples = len(sampling) if into is None else len(rows)
    state_rows, sample_positions = torch.empty(2, samples, dtype=torch.int64, device=table.device)
    out = GatherOutputs(
        token_ids=inputs.token_ids,
        positions=inputs.positions,
        cu_query_lens=inputs.cu_query_lens,
        context_lens=inputs.context_lens,
        block_tables=inputs.block_tables,
        slot_mapping=inputs.slot_mapping,
        token_indices=inputs.token_indices,
        state_rows=state_rows,
        sample_positions=sample_positions,
    )
    gather_step(
        to_device(columns, table.device),
        table.tokens,
        table.block_tables,
        out,
        width=width,
        block_size=table.block_size,
    )
    real = slice(0, len(sampling))
    sampled = SampledRows(
        [rows[i] for i in sampling], [ends[i] for i in sampling], state_rows[real], sample_positions[real]
    )
    return GatheredStep(inputs, sampled)


def _empty_inputs(table: StateTable, counts: list[int], ends: list[int], samples: int, width: int) -> StepInputs:
    """Allocate the inputs of sequences that compute `counts` tokens each and then have `ends` tokens."""
    tokens, sequences = sum(counts), len(counts)

    def empty(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=table.device)

    return StepInputs(
        token_ids=empty(tokens),
        positions=empty(tokens, dtype=torch.int64),
        cu_query_lens=empty(sequences + 1),
        context_lens=empty(sequences),
        block_tables=tuple(empty(sequences, width) for _ in table.block_tables),
        slot_mapping=tuple(empty(tokens, dtype=torch.int64) for _ in table.block_tables),
        token_indices=empty(samples, dtype=torch.int64),
        query_lens_host=tuple(counts),
        context_lens_host=tuple(ends),
        all_sampled=samples == sequences == tokens,
    )


def _copied(plan: StepPlan, step: StepInputs, into: StepInputs) -> StepInputs:
    """Copy a plan's inputs into the tensors of `into`, pad the rest as the kernel does, and return `into`."""
    sequences, device = _Sequences.of(plan, into), into.token_ids.device
    starts = list(accumulate(sequences.counts, initial=0))
    last_tokens = [0] * len(sequences.rows)
    for sequence, place in enumerate(sequences.places(padded=True)):
        last_tokens[place] = starts[sequence + 1] - 1
    into.cu_query_lens.copy_(to_device(starts, device))
    into.token_indices.copy_(to_device(last_tokens, device))
    for tokens, new_tokens in ((into.token_ids, step.token_ids), (into.positions, step.positions)):
        _put(tokens, new_tokens, 0)
    for slots, new_slots in zip(into.slot_mapping, step.slot_mapping, strict=True):
        _put(slots, new_slots, -1)
    width = step.block_tables[0].shape[1]
    # Columns beyond the step's longest context keep block ids of earlier steps, which are never read.
    tables = zip((table[:, :width] for table in into.block_tables), step.block_tables, strict=True)
    room, decodes = into.num_decodes, plan.num_decode_tokens
    for buffer, values in ((into.context_lens, step.context_lens), *tables):
        _put(buffer[:room], values[:decodes], 0)
        _put(buffer[room:], values[decodes:], 0)
    return into


def _put(buffer: Tensor, values: Tensor, padding: int) -> None:
    buffer[: len(values)].copy_(values)
    buffer[len(values) :].fill_(padding)


def _by_torch(plan: StepPlan, table: StateTable) -> GatheredStep:
    """Gather the inputs of any plan with PyTorch; decodes come before chunks."""
    device, size, total = table.device, table.block_size, plan.num_tokens
    sequences = _Sequences.of(plan, None)
    rows_host, ends_host, sampling = sequences.rows, sequences.ends(), sequences.sampling
    count = len(rows_host)
    columns = to_device([*rows_host, *sequences.starts, *sequences.counts, *sampling], device)
    rows, starts, counts = columns[: 3 * count].view(3, count)
    places = columns[3 * count :]
    token_ends = counts.cumsum(0)
    sequence = torch.repeat_interleave(torch.arange(count, device=device), counts, output_size=total)
    positions = torch.arange(total, device=device) + (starts + counts - token_ends)[sequence]
    block_tables = _block_tables(table, rows, max(ends_host))
    entry, offset = positions // size, positions % size
    contexts = starts + counts
    inputs = StepInputs(
        token_ids=table.tokens[rows[sequence], positions],
        positions=positions,
        cu_query_lens=torch.nn.functional.pad(token_ends, (1, 0)).to(torch.int32),
        context_lens=contexts.to(torch.int32),
        block_tables=block_tables,
        slot_mapping=tuple(blocks[sequence, entry].long().mul_(size).add_(offset) for blocks in block_tables),
        token_indices=(token_ends - 1)[places],
        query_lens_host=tuple(sequences.counts),
        context_lens_host=tuple(ends_host),
        all_sampled=len(sampling) == count == total,
    )
    state_rows, positions = [rows_host[i] for i in sampling], [ends_host[i] for i in sampling]
    return GatheredStep(inputs, SampledRows(state_rows, positions, rows[places], contexts[places]))


def _block_tables(table: StateTable, rows: Tensor, longest: int) -> tuple[Tensor, ...]:
    """Return the block tables of `rows` [S], as wide as the step's longest context (in tokens) needs."""
    width = -(-longest // table.block_size)
    return tuple(blocks[:, :width].index_select(0, rows) for blocks in table.block_tables)
