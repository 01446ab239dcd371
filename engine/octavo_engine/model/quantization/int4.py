"""Weights of 4 bits that are quantized while they are loaded, `--quantization int4`: groups of 32 columns.

Each group has a scale and a minimum, as GGUF's Q4_1. Where ranks have parts of the columns, groups begin at each rank's
first one; the last group may be smaller.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo_engine.kernels.cpu.quantized import pack
from octavo_engine.model.checkpoint.tensors import CheckpointTensor, Piece, plain
from octavo_engine.model.quantization.grouped import Grouped
from octavo_engine.model.quantization.int8 import INT8
from octavo_engine.model.quantization.linear_method import Projection, Weights
from octavo_engine.model.quantization.loading import quantize_into
from octavo_engine.model.quantization.scheme import Scheme

GROUP = 32
_LARGEST = 15
_ROUNDS = 4
"""The number of rounds; a further one changes hardly any number."""


def _tensors(method: Grouped, weights: Weights, projection: Projection) -> Iterator[CheckpointTensor]:  # noqa: ARG001
    weight, rows = weights.weight[projection.rows], projection.rows
    others = cast("Tensor", weights.scale)[rows], cast("Tensor", weights.minimum)[rows]
    span, columns = projection.stored_rows, projection.columns
    tensor = plain(f"{projection.name}.weight", weight, span, columns)
    part, shape = (span.slice, columns.slice), (span.total, columns.total)
    fill = partial(quantize_into, quantize, others)
    yield replace(tensor, shape=shape, pieces=(Piece(weight, part, fill, projection.order),))


def quantize(weight: Tensor, group: int = GROUP) -> tuple[Tensor, Tensor, Tensor]:
    """Return codes uint8, two in a byte, and scales and minima bfloat16 [rows, groups] of a weight [rows, columns].

    Beginning with the range of each group, codes for the scales and, by least squares, scales and minima for the codes
    are computed in turn, which never increases the squared error.
    """
    rows, columns = weight.shape
    groups = -(-columns // group)
    # The last group is padded with its last number, which changes no range; sums leave the padding out.
    wide = F.pad(weight.float()[:, None], (0, groups * group - columns), mode="replicate").view(rows, groups, group)
    own = (torch.arange(groups * group, device=weight.device) < columns).float().view(groups, group)
    share = own / own.sum(-1, keepdim=True)
    minimum = wide.amin(-1, keepdim=True)
    scale = (wide.amax(-1, keepdim=True) - minimum) / _LARGEST
    mean = (wide * share).sum(-1, keepdim=True)
    for _ in range(_ROUNDS):
        codes = _codes(wide, scale, minimum)
        middle = (codes * share).sum(-1, keepdim=True)
        apart = (codes - middle) * own
        spread = apart.square().sum(-1, keepdim=True)
        fitted = (apart * (wide - mean)).sum(-1, keepdim=True) / spread.clamp(min=1.0)
        scale = torch.where(spread > 0, fitted, scale)
        minimum = mean - scale * middle
    scale, minimum = scale.bfloat16(), minimum.bfloat16()
    codes = _codes(wide, scale.float(), minimum.float()).to(torch.uint8).view(rows, -1)[:, :columns]
    return pack(codes, 4), scale.squeeze(-1), minimum.squeeze(-1)


def _codes(wide: Tensor, scale: Tensor, minimum: Tensor) -> Tensor:
    """Return the code of each number, as float32; 0 where all numbers of a group are equal."""
    return ((wide - minimum) / torch.where(scale == 0, 1.0, scale)).round_().clamp_(0, _LARGEST)


SCHEME = Scheme(
    name="int4",
    readers={},
    online=Grouped("int4", 4, GROUP, _tensors, has_minimum=True, ranks_cut_anywhere=True),
    online_head=INT8(online=True),  # in 4 bits its error would exceed that of all others
    supported="",
)
