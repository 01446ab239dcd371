"""Weights of 4 bits that are quantized while they are loaded, `--quantization int4`: symmetric, groups of 128 columns.

Where ranks have parts of the columns, groups begin at each rank's first one; the last group may be smaller.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo_engine.model.checkpoint import CheckpointTensor, Piece, plain
from octavo_engine.model.quantization.grouped import Grouped, pack
from octavo_engine.model.quantization.linear_method import Projection, Weights
from octavo_engine.model.quantization.loading import quantize_into
from octavo_engine.model.quantization.scheme import Scheme

GROUP = 128
_MIDDLE = 8
_CLIPS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75)
"""Parts of a group's largest number that its scale may be made for; the one with the least squared error is taken."""


def _tensors(method: Grouped, weights: Weights, projection: Projection) -> Iterator[CheckpointTensor]:  # noqa: ARG001
    weight, scale = weights.weight[projection.rows], cast("Tensor", weights.scale)[projection.rows]
    span, columns = projection.stored_rows, projection.columns
    tensor = plain(f"{projection.name}.weight", weight, span, columns)
    part, shape = (span.slice, columns.slice), (span.total, columns.total)
    fill = partial(quantize_into, quantize, scale)
    yield replace(tensor, shape=shape, pieces=(Piece(weight, part, fill, projection.order),))


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Codes uint8, two to a byte, and scales float32 [rows, groups] of a weight [rows, columns].

    The number that is largest without its sign becomes -8, which has no counterpart (as in GGUF's Q4_0).
    """
    rows, columns = weight.shape
    groups = -(-columns // GROUP)
    wide = F.pad(weight.float(), (0, groups * GROUP - columns)).view(rows, groups, GROUP)
    largest = wide.gather(-1, wide.abs().argmax(-1, keepdim=True))
    best, scale = torch.full_like(largest, torch.inf), torch.zeros_like(largest)
    for clip in _CLIPS:
        step = largest * (-clip / _MIDDLE)
        error = (_codes(wide, step).sub_(_MIDDLE).mul_(step) - wide).square_().sum(-1, keepdim=True)
        better = error < best
        best, scale = torch.where(better, error, best), torch.where(better, step, scale)
    codes = _codes(wide, scale).to(torch.uint8).view(rows, -1)[:, :columns]
    return pack(codes, 4), scale.squeeze(-1)


def _codes(wide: Tensor, step: Tensor) -> Tensor:
    """The code of each number, as float32; where a group is all zeros, the middle."""
    return (wide / torch.where(step == 0, 1.0, step)).round_().add_(_MIDDLE).clamp_(0, 2 * _MIDDLE - 1)


SCHEME = Scheme(
    name="int4",
    readers={},
    online=Grouped("int4", 4, GROUP, _tensors, ranks_cut_anywhere=True),
    supported="",
)
