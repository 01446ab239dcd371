"""Encodes a step plan as bytes, and decodes it, for ranks in other processes: JSON of its columns, never pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from octavo_engine.core.step import BlockOp, BlockOpKind, Chunk, NewRow, StepPlan, TableChange
from octavo_engine.sampling_params import SamplingParams


def encode_plan(plan: StepPlan) -> bytes:
    """Encode a plan for `decode_plan`."""
    columns = (
        plan.step,
        [
            (new.row, new.request_id, new.token_ids, new.prompt_len, asdict(new.sampling), *_of_prompt(new))
            for new in plan.new_rows
        ],
        [(change.row, change.group, change.index, change.blocks) for change in plan.table_changes],
        [(op.kind, op.group, op.source, op.target) for op in plan.block_ops],
        plan.decode_rows,
        plan.decode_starts,
        list(plan.drafts.items()),
        [(chunk.row, chunk.start, chunk.num_tokens, chunk.samples) for chunk in plan.chunks],
    )
    return json.dumps(columns, separators=(",", ":")).encode()


def decode_plan(data: bytes) -> StepPlan:
    """Decode the plan that `encode_plan` encoded."""
    step, new_rows, changes, ops, decode_rows, decode_starts, drafts, chunks = json.loads(data)
    return StepPlan(
        step,
        tuple(
            NewRow(row, request_id, tuple(tokens), prompt_len, sampling_params(sampling), *of_prompt)
            for row, request_id, tokens, prompt_len, sampling, *of_prompt in new_rows
        ),
        tuple(TableChange(row, group, index, tuple(blocks)) for row, group, index, blocks in changes),
        tuple(BlockOp(BlockOpKind(kind), *rest) for kind, *rest in ops),
        decode_rows,
        decode_starts,
        {index: tuple(tokens) for index, tokens in drafts},
        tuple(Chunk(*chunk) for chunk in chunks),
    )


def _of_prompt(new: NewRow) -> tuple[bool, str, int]:
    return new.pooled, new.adapter, new.second_text


def sampling_params(values: Mapping[str, Any]) -> SamplingParams:
    """Return sampling parameters with these names and values of JSON; TypeError for an unknown name.

    Lists become tuples, and objects, whose keys are token ids, tuples of pairs.
    """
    return SamplingParams(**{name: _frozen(value) for name, value in values.items()})


def _frozen(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_frozen, value))
    if isinstance(value, dict):
        return tuple((int(token), number) for token, number in value.items())
    return value
