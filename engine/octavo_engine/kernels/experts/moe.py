"""Mixture of experts: every token's rows go through the k experts that a router chose for it.

y[t] = sum over j of weight[t, j] * down[e] (silu(gate[e] x[t]) * up[e] x[t]) with e = expert[t, j]; biases and
gpt-oss's activation (experts.py) are compile-time constants. The T * k routed rows are sorted by expert and cut into
tiles (grouping.py), so that each tile is a dense product with one expert's weights; after vLLM's fused_moe and
MegaBlocks (arXiv 2211.15841). Three kernels: gate and up with the activation at their end, down with the routing weight
at its end, and the sum over a token's experts in their order, which makes results deterministic.

Sizes of grids and scratch follow from T, k and the number of experts alone, and nothing waits for the device.
PyTorch has the grouped products, too: moe_autotune.py measures which of the two is faster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from octavo_engine.kernels.cpu.quantized import QuantizedWeight
from octavo_engine.kernels.experts.expert_tiles import stored_tile
from octavo_engine.kernels.experts.experts import ExpertCodes, Experts
from octavo_engine.kernels.gpu_limits import AMPERE_SHARED_MEMORY, HOPPER_SHARED_MEMORY, shared_memory
from octavo_engine.kernels.grouping import group_rows, tile_rows
from octavo_engine.kernels.quantized.quantized_numbers import can_dequantize, sections

_BLOCK_INNER = 64
_BLOCK_SUM = 1024


@triton.jit
def gated(gate, up, LIMIT: tl.constexpr, ALPHA: tl.constexpr, UP_OFFSET: tl.constexpr):
    """`Experts.activate`, float32; NaN stays NaN where numbers are cut off."""
    if LIMIT is not None:
        gate = tl.where(gate > LIMIT, LIMIT, gate)
        up = tl.where(up > LIMIT, LIMIT, tl.where(up < -LIMIT, -LIMIT, up)) + UP_OFFSET
    return gate * tl.sigmoid(ALPHA * gate) * up


@triton.jit(do_not_specialize=["tiles", "num_tiles"])
def moe_gate_up_kernel(
    inner,  # [T * k, INTERMEDIATE], in the order of `order`; without ACTIVATE [T * k, 2 * INTERMEDIATE]
    x,  # [T, HIDDEN]
    gate_up,  # [experts, 2 * INTERMEDIATE, HIDDEN], or words of codes, or half as many bytes of MXFP4
    scales,  # [experts, 2 * INTERMEDIATE, groups], None: weights are in x's type
    zero,  # [experts, rows, groups] of codes, None: they have none; as the next three
    minimum,
    super_scale,
    super_minimum,
    bias,  # [experts, 2 * INTERMEDIATE], None: none
    order,
    tiles,
    num_tiles,
    x_stride,
    TOP_K: tl.constexpr,
    HIDDEN: tl.constexpr,
    INTERMEDIATE: tl.constexpr,
    LIMIT: tl.constexpr,
    ALPHA: tl.constexpr,
    UP_OFFSET: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_INNER: tl.constexpr,
    PRECISION: tl.constexpr,
    BITS: tl.constexpr,  # of a code, 0: MXFP4; this and the next four as in `stored_tile`
    SIGNED: tl.constexpr,
    GROUP: tl.constexpr,
    SUPER: tl.constexpr,
    OFFSET: tl.constexpr,
    ACTIVATE: tl.constexpr,
):
    """One program computes one tile of an expert's rows, BLOCK_OUT columns of gate and the same of up."""
    tile = tl.program_id(1)
    if tile >= tl.load(num_tiles):
        return
    expert, places, rows, exists = tile_rows(order, tiles, tile, TILE_ROWS)
    columns = tl.program_id(0) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    known = columns < INTERMEDIATE
    x_rows = x + (rows // TOP_K)[:, None] * x_stride
    gate_rows = gate_up + (expert * 2 * INTERMEDIATE + columns)[:, None] * HIDDEN
    gate = tl.zeros([TILE_ROWS, BLOCK_OUT], dtype=tl.float32)
    up = tl.zeros([TILE_ROWS, BLOCK_OUT], dtype=tl.float32)
    for first in range(0, HIDDEN, BLOCK_INNER):
        features = first + tl.arange(0, BLOCK_INNER)
        real = (features < HIDDEN)[None, :]
        x_tile = tl.load(x_rows + features[None, :], mask=exists[:, None] & real, other=0.0)
        if scales is None:
            up_rows = gate_rows + INTERMEDIATE * HIDDEN
            gate_tile = tl.load(gate_rows + features[None, :], mask=known[:, None] & real, other=0.0)
            up_tile = tl.load(up_rows + features[None, :], mask=known[:, None] & real, other=0.0)
        else:
            row = expert * 2 * INTERMEDIATE + columns
            gate_tile = stored_tile(
                gate_up, scales, zero, minimum, super_scale, super_minimum, row, known, first, HIDDEN,
                BITS, SIGNED, GROUP, SUPER, OFFSET, BLOCK_INNER, x_tile.dtype,
            )  # fmt: skip
            up_tile = stored_tile(
                gate_up, scales, zero, minimum, super_scale, super_minimum, row + INTERMEDIATE, known, first, HIDDEN,
                BITS, SIGNED, GROUP, SUPER, OFFSET, BLOCK_INNER, x_tile.dtype,
            )  # fmt: skip
        gate = tl.dot(x_tile, tl.trans(gate_tile), gate, input_precision=PRECISION)
        up = tl.dot(x_tile, tl.trans(up_tile), up, input_precision=PRECISION)
    if bias is not None:
        biases = bias + expert * 2 * INTERMEDIATE + columns
        gate += tl.load(biases, mask=known, other=0.0).to(tl.float32)[None, :]
        up += tl.load(biases + INTERMEDIATE, mask=known, other=0.0).to(tl.float32)[None, :]
    inside = exists[:, None] & known[None, :]
    if ACTIVATE:
        result = gated(gate, up, LIMIT, ALPHA, UP_OFFSET).to(inner.dtype.element_ty)
        tl.store(inner + places[:, None] * INTERMEDIATE + columns[None, :], result, mask=inside)
    else:
        gates = inner + places[:, None] * (2 * INTERMEDIATE) + columns[None, :]
        tl.store(gates, gate.to(inner.dtype.element_ty), mask=inside)
        tl.store(gates + INTERMEDIATE, up.to(inner.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["tiles", "num_tiles"])
def moe_down_kernel(
    routed,  # [T, k, HIDDEN]
    inner,  # [T * k, INTERMEDIATE], in the order of `order`
    down,  # [experts, HIDDEN, INTERMEDIATE], or words of codes, or half as many bytes of MXFP4
    scales,  # [experts, HIDDEN, groups], None: weights are in the type of inner
    zero,  # of codes, as in `moe_gate_up_kernel`
    minimum,
    super_scale,
    super_minimum,
    bias,  # [experts, HIDDEN], None: none
    weights,  # [T, k] float32
    order,
    tiles,
    num_tiles,
    HIDDEN: tl.constexpr,
    INTERMEDIATE: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_INNER: tl.constexpr,
    PRECISION: tl.constexpr,
    BITS: tl.constexpr,  # of a code, 0: MXFP4; this and the next four as in `stored_tile`
    SIGNED: tl.constexpr,
    GROUP: tl.constexpr,
    SUPER: tl.constexpr,
    OFFSET: tl.constexpr,
):
    """One program computes one tile of an expert's rows, BLOCK_OUT columns of the output, weighted."""
    tile = tl.program_id(1)
    if tile >= tl.load(num_tiles):
        return
    expert, places, rows, exists = tile_rows(order, tiles, tile, TILE_ROWS)
    columns = tl.program_id(0) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    known = columns < HIDDEN
    down_rows = down + (expert * HIDDEN + columns)[:, None] * INTERMEDIATE
    sums = tl.zeros([TILE_ROWS, BLOCK_OUT], dtype=tl.float32)
    for first in range(0, INTERMEDIATE, BLOCK_INNER):
        features = first + tl.arange(0, BLOCK_INNER)
        real = (features < INTERMEDIATE)[None, :]
        inner_tile = tl.load(
            inner + places[:, None] * INTERMEDIATE + features[None, :], mask=exists[:, None] & real, other=0.0
        )
        if scales is None:
            down_tile = tl.load(down_rows + features[None, :], mask=known[:, None] & real, other=0.0)
        else:
            row = expert * HIDDEN + columns
            down_tile = stored_tile(
                down, scales, zero, minimum, super_scale, super_minimum, row, known, first, INTERMEDIATE,
                BITS, SIGNED, GROUP, SUPER, OFFSET, BLOCK_INNER, inner_tile.dtype,
            )  # fmt: skip
        sums = tl.dot(inner_tile, tl.trans(down_tile), sums, input_precision=PRECISION)
    if bias is not None:
        sums += tl.load(bias + expert * HIDDEN + columns, mask=known, other=0.0).to(tl.float32)[None, :]
    sums *= tl.load(weights + rows, mask=exists, other=0.0)[:, None]
    tl.store(
        routed + rows[:, None] * HIDDEN + columns[None, :],
        sums.to(routed.dtype.element_ty),
        mask=exists[:, None] & known[None, :],
    )


@triton.jit
def moe_sum_kernel(
    output,  # [T, HIDDEN]
    routed,  # [T, TOP_K, HIDDEN]
    experts,  # [T, TOP_K]
    NUM_EXPERTS: tl.constexpr,
    TOP_K: tl.constexpr,
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program adds up BLOCK columns of one token's experts in turn; rows that no expert computed are not read."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    sums = tl.zeros([BLOCK], dtype=tl.float32)
    for choice in tl.static_range(TOP_K):
        expert = tl.load(experts + token * TOP_K + choice)
        computed = columns < tl.where((expert >= 0) & (expert < NUM_EXPERTS), HIDDEN, 0)
        sums += tl.load(routed + (token * TOP_K + choice) * HIDDEN + columns, mask=computed, other=0.0).to(tl.float32)
    tl.store(output + token * HIDDEN + columns, sums.to(output.dtype.element_ty), mask=columns < HIDDEN)


@dataclass(frozen=True, slots=True)
class Tiles:
    """The tile sizes of the grouped products."""

    rows: int
    gate_up_columns: int
    """Columns of gate, and as many of up."""
    down_columns: int
    warps: int
    stages: int


FEW_ROWS, SOME_ROWS = 16, 64
"""Rows of an expert, on average, up to which tiles are small, and no larger than medium."""


def tiles_for(rows: int, experts: int, *, quantized: bool = False, shared_memory: int = HOPPER_SHARED_MEMORY) -> Tiles:
    """Return small tiles for few rows an expert, when reading weights dominates, and large ones for prefill.

    `quantized`: weights in e4m3 or codes, whose numbers take registers in place of shared memory. `shared_memory`: the
    bytes that one program may have; large tiles need those of A100.
    """
    if rows <= FEW_ROWS * experts:
        return Tiles(rows=16, gate_up_columns=32 if quantized else 64, down_columns=64, warps=4, stages=4)
    if rows <= SOME_ROWS * experts or shared_memory < AMPERE_SHARED_MEMORY:
        return Tiles(rows=64, gate_up_columns=64, down_columns=128, warps=4, stages=3)
    return Tiles(rows=128, gate_up_columns=128, down_columns=128 if quantized else 256, warps=8, stages=3)


@dataclass(frozen=True, slots=True)
class _Weight:
    """One of the two weights of all experts, as the kernels take it."""

    tensors: Sequence[torch.Tensor | None]
    """The weight, and its scales, zeros, minima, and factors of scales and minima, if there are such."""
    constants: Mapping[str, Any]


_NO_CODES = {"BITS": 0, "SIGNED": False, "GROUP": 0, "SUPER": 1, "OFFSET": 0.0}


def _weight(weight: torch.Tensor, scales: torch.Tensor | None, codes: ExpertCodes | None) -> _Weight:
    if codes is None:
        return _Weight((weight, scales, None, None, None, None), _NO_CODES)
    ((_, (*tensors, _), constants),) = sections(codes.every)
    return _Weight(tensors, constants)


def multiplies(weight: QuantizedWeight) -> bool:
    """Return True if the kernels know the codes of all experts: e4m3, or complete words with groups of such."""
    (part,) = weight.parts
    return part.column_groups is None and (part.codes.is_floating_point() or can_dequantize(weight))


class RoutedRows:
    """The T * k rows of a step's tokens, by expert, and the three products of them."""

    def __init__(self, x: torch.Tensor, experts: Experts, chosen: torch.Tensor, weights: torch.Tensor) -> None:
        """Take the arguments of `mixture_of_experts`, for at least one token."""
        self.x, self.experts = x, experts
        self.chosen, self.weights = chosen.contiguous(), weights.contiguous()
        self.num_experts, hidden = experts.count, experts.hidden
        codes = experts.quantized or (None, None)
        self._gate_up = _weight(experts.gate_up, experts.gate_up_scales, codes[0])
        self._down = _weight(experts.down, experts.down_scales, codes[1])
        self.intermediate = experts.intermediate
        quantized, shared = experts.quantized is not None, shared_memory(x.device)
        cut = self._cut = tiles_for(self.chosen.numel(), self.num_experts, quantized=quantized, shared_memory=shared)
        self.groups = group_rows(self.chosen.view(-1), self.num_experts, cut.rows)
        self._tiles = (self.groups.order, self.groups.tiles, self.groups.num_tiles)
        self._sizes = {"HIDDEN": hidden, "INTERMEDIATE": self.intermediate, "TILE_ROWS": cut.rows}
        self._sizes["BLOCK_INNER"] = _BLOCK_INNER
        self._options = {"PRECISION": "ieee" if x.dtype == torch.float32 else "tf32", "num_warps": cut.warps}
        self._options["num_stages"] = cut.stages

    def gate_up(self, *, activate: bool) -> torch.Tensor:
        """Return [T * k, intermediate] in the order of `groups`; without activation [T * k, 2 * intermediate]."""
        columns = self.intermediate if activate else 2 * self.intermediate
        inner = torch.empty(self.chosen.numel(), columns, dtype=self.x.dtype, device=self.x.device)
        moe_gate_up_kernel[triton.cdiv(self.intermediate, self._cut.gate_up_columns), self.groups.max_tiles](
            inner,
            self.x,
            *self._gate_up.tensors,
            self.experts.gate_up_bias,
            *self._tiles,
            self.x.stride(0),
            TOP_K=self.chosen.shape[1],
            BLOCK_OUT=self._cut.gate_up_columns,
            LIMIT=self.experts.limit,
            ALPHA=self.experts.alpha,
            UP_OFFSET=self.experts.up_offset,
            ACTIVATE=activate,
            **self._gate_up.constants,
            **self._sizes,
            **self._options,
        )
        return inner

    def down(self, inner: torch.Tensor) -> torch.Tensor:
        """Return the weighted outputs [T, k, hidden] of activated rows; rows that no expert computed are undefined."""
        hidden = self._sizes["HIDDEN"]
        routed = torch.empty(*self.chosen.shape, hidden, dtype=inner.dtype, device=inner.device)
        moe_down_kernel[triton.cdiv(hidden, self._cut.down_columns), self.groups.max_tiles](
            routed,
            inner,
            *self._down.tensors,
            self.experts.down_bias,
            self.weights,
            *self._tiles,
            BLOCK_OUT=self._cut.down_columns,
            **self._down.constants,
            **self._sizes,
            **self._options,
        )
        return routed

    def total(self, routed: torch.Tensor) -> torch.Tensor:
        """Add up [T, k, hidden] over the experts, in their order, to [T, hidden]."""
        tokens, top_k, hidden = routed.shape
        output = torch.empty(tokens, hidden, dtype=routed.dtype, device=routed.device)
        moe_sum_kernel[tokens, triton.cdiv(hidden, _BLOCK_SUM)](
            output, routed, self.chosen, NUM_EXPERTS=self.num_experts, TOP_K=top_k, HIDDEN=hidden, BLOCK=_BLOCK_SUM
        )
        return output


def mixture_of_experts(x: torch.Tensor, experts: Experts, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return the experts' weighted sum [T, hidden] of `x` [T, hidden], in its dtype; weights are in it, in MXFP4, or
    in codes.

    `chosen` [T, k] (int32 or int64) and `weights` [T, k] float32 are the router's; an expert outside of 0..E-1 adds
    nothing (padding, another rank's expert). Products are summed in float32; the activation's result and each expert's
    weighted output are rounded to the dtype. Scratch: T * k * (intermediate + hidden) elements.
    """
    if not len(x):
        return torch.empty_like(x)
    rows = RoutedRows(x, experts, chosen, weights)
    return rows.total(rows.down(rows.gate_up(activate=True)))
