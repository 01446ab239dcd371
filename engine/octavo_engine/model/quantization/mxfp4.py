"""Experts in MXFP4 (OCP Microscaling Formats 1.0), as gpt-oss is published.

Where our Triton kernels multiply MXFP4 the experts stay in it; elsewhere they are dequantized while they are loaded.

32 numbers of 4 bits (e2m1) share a power of two (e8m0). A checkpoint has two numbers in each byte of `_blocks`, the
first one in the lower half, and a byte for each 32 of them in `_scales`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from octavo_engine.errors import ModelLoadError
from octavo_engine.model.checkpoint.tensors import CheckpointTensor, Piece, Rows, Span, check_finite
from octavo_engine.model.fields import Fields

_BLOCK = 32
_HALVES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M1 = (*_HALVES, *(-value for value in _HALVES))
E8M0 = (*(2.0 ** (code - 127) for code in range(255)), math.nan)
_NOT_A_NUMBER = 255
"""The code of NaN in e8m0."""


@dataclass(frozen=True, slots=True)
class MXFP4:
    """The storage of all experts' weights in a checkpoint."""

    alignment: int = _BLOCK
    """The multiple in which ranks divide the columns of a weight."""
    name: str = "mxfp4"

    def bytes(self, columns: int) -> tuple[int, int]:
        """Return the bytes of a row's numbers and of its scales."""
        return columns // 2, columns // _BLOCK

    def codes(self, name: str, codes: Tensor, scales: Tensor, rows: Span, columns: Span) -> Iterator[CheckpointTensor]:
        """Yield the tensors that fill `codes` [E, ..., columns / 2] and `scales` [E, ..., columns / 32], both uint8.

        Their middle dimensions are `rows`.
        """
        blocks, halves = columns.by(_BLOCK), _BLOCK // 2
        part, shape = (slice(0, len(codes)), rows.slice, blocks.slice), (len(codes), rows.total, blocks.total)
        targets = (codes.unflatten(-1, (-1, halves)), (*shape, halves)), (scales, shape)  # type: ignore[no-untyped-call]
        fills = _copy, _copy_powers
        for suffix, (target, stored), fill in zip(("blocks", "scales"), targets, fills, strict=True):
            pieces = (Piece(target, part, fill),)
            yield CheckpointTensor(name=f"{name}_{suffix}", shape=stored, pieces=pieces, types=("U8",))

    def tensors(self, name: str, target: Tensor, rows: Span, columns: Span) -> Iterator[CheckpointTensor]:
        """Yield the tensors that fill `target` [E, ..., columns]; its middle dimensions are `rows`."""
        experts, blocks = target.shape[0], columns.by(_BLOCK)
        part = slice(0, experts), rows.slice, blocks.slice
        shape = experts, rows.total, blocks.total
        yield CheckpointTensor(
            name=f"{name}_blocks",
            shape=(*shape, _BLOCK // 2),
            pieces=(Piece(target, part, _write_numbers),),
            types=("U8",),
        )
        yield CheckpointTensor(
            name=f"{name}_scales", shape=shape, pieces=(Piece(target, part, _scale_numbers),), types=("U8",), late=True
        )


def read_mxfp4(fields: Fields) -> MXFP4 | None:
    """Read from config.json how experts are stored; None: in floating point.

    ModelLoadError if weights are quantized in another format, or if some experts are not in MXFP4.
    """
    config = fields.mapping("quantization_config")
    if config is None:
        return None
    method = config.text("quant_method", default="?")
    if method != "mxfp4":
        raise ModelLoadError(
            f"{config.origin}: the weights are quantized ({method}), which this version of Octavo does not support for "
            "mixtures of experts; supported are experts in mxfp4 and unquantized checkpoints"
        )
    excluded = config.values.get("modules_to_not_convert") or []
    if not isinstance(excluded, list) or any("experts" in str(name) for name in excluded):
        raise config.wrong("modules_to_not_convert", excluded, "has experts, which are all in mxfp4 or none")
    return MXFP4()


def _copy(target: Tensor, rows: Rows, values: Tensor) -> None:
    """Copy bytes as they are."""
    place = target[rows]
    place.copy_(values.reshape(place.shape))


def _copy_powers(target: Tensor, rows: Rows, values: Tensor) -> None:
    check_powers(values)
    _copy(target, rows, values)


def check_powers(codes: Tensor) -> None:
    """Raise ValueError if some of these codes of e8m0, uint8, are NaN."""
    if bool((codes == _NOT_A_NUMBER).any()):
        raise ValueError("has scales that are not numbers")


def _write_numbers(target: Tensor, rows: Rows, values: Tensor) -> None:
    """Write the numbers of e2m1 codes, not yet multiplied with their powers of two, expert by expert."""
    numbers = torch.tensor(E2M1, dtype=target.dtype, device=target.device)
    pairs = torch.stack((numbers.repeat(16), numbers.repeat_interleave(16)), dim=1)  # by byte: lower half, upper half
    for mine, stored in zip(target[rows], values, strict=True):
        mine.copy_(pairs[stored.to(target.device).int()].view(mine.shape))


def _scale_numbers(target: Tensor, rows: Rows, values: Tensor) -> None:
    """Multiply the numbers in `target` with their powers of two."""
    check_powers(values)
    powers = torch.tensor(E8M0, device=target.device)
    for mine, stored in zip(target[rows], values, strict=True):
        own = powers[stored.to(target.device).int()].view(*mine.shape[:-1], -1, 1)
        check_finite(mine.unflatten(-1, (-1, _BLOCK)).mul_(own), own)
