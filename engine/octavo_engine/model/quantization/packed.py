"""Unpacks codes of 2, 3, 4 or 8 bits from 32-bit words, as GPTQ, AWQ and compressed-tensors store them.

Public functions describe a stored tensor; the private ones that they pass on fill its pieces, with a ValueError that
says what is wrong with its numbers.
"""

from __future__ import annotations

from functools import partial
from typing import cast

import torch
from torch import Tensor

from octavo_engine.errors import ModelLoadError
from octavo_engine.kernels.cpu.quantized import pack
from octavo_engine.model.checkpoint.tensors import CheckpointTensor, Fill, Piece, Rows, Span, plain, write
from octavo_engine.model.quantization.grouped import WORD_BITS, Grouped, codes_of_words
from octavo_engine.model.quantization.linear_method import Projection, Weights
from octavo_engine.model.quantization.loading import in_parts

INTEGERS = ("I32",)
_WORDS = 1 << 17
"""The words that are unpacked at once."""


def codes_by_columns(method: Grouped, name: str, weights: Weights, projection: Projection) -> CheckpointTensor:
    """Describe words [out, in / codes] of consecutive columns, the first one lowest: bytes as in memory, unless
    codes have more bits there."""
    stored, columns = projection.stored_rows, _words(projection.columns, method.stored_bits)
    fill = _write_words if method.fewer_bits is None else partial(_write_wider, method.fewer_bits, method.bits)
    piece = Piece(weights.weight[projection.rows], (stored.slice, columns.slice), fill, projection.order)
    return CheckpointTensor(name=name, shape=(stored.total, columns.total), pieces=(piece,), types=INTEGERS)


def codes_in_bytes(method: Grouped, name: str, weights: Weights, projection: Projection) -> CheckpointTensor:
    """Describe signed numbers [out, in], each in a byte of its own, whatever their bits."""
    stored, columns = projection.stored_rows, projection.columns
    fill = partial(_write_signed, method.bits)
    piece = Piece(weights.weight[projection.rows], (stored.slice, columns.slice), fill, projection.order)
    return CheckpointTensor(name=name, shape=(stored.total, columns.total), pieces=(piece,), types=("I8",))


def codes_by_rows(
    method: Grouped, name: str, weights: Weights, projection: Projection, places: tuple[int, ...]
) -> CheckpointTensor:
    """Describe words [out / codes, in], each of consecutive rows, of which number i is at `places[i]` of the word."""
    target, columns = weights.weight[projection.rows], projection.columns
    return _by_rows(method, name, target, projection, columns, partial(_pack_rows, method.bits, places))


def zeros_by_rows(
    method: Grouped,
    name: str,
    weights: Weights,
    projection: Projection,
    places: tuple[int, ...] | None = None,
    *,
    less_one: bool = False,
) -> CheckpointTensor:
    """Describe words [out / codes, groups] of consecutive rows; `places` as for `codes_by_rows`, None: in order.

    `less_one`: one was subtracted from each zero of a word. That is undone for the word, as it was done: a zero of 0
    has borrowed from the next one.
    """
    target, groups = cast("Tensor", weights.zero)[projection.rows], group_span(method, projection)
    bits = method.stored_bits
    places = places or tuple(range(WORD_BITS // bits))
    ones = sum(1 << (place * bits) for place in places) if less_one else 0
    return _by_rows(method, name, target, projection, groups, partial(_unpack_rows, bits, places, ones))


def scales(method: Grouped, name: str, weights: Weights, projection: Projection) -> CheckpointTensor:
    """Describe scales [out, groups], which must be finite.

    AutoRound's symmetric ones may be negative: -8 then stands for a group's largest number, even if that is positive.
    """
    target, groups = cast("Tensor", weights.scale)[projection.rows], group_span(method, projection)
    tensor = plain(name, target, projection.stored_rows, groups, order=projection.order)
    (piece,) = tensor.pieces
    checked = Piece(piece.target, piece.part, _write_finite, piece.order)
    return CheckpointTensor(name=name, shape=tensor.shape, pieces=(checked,))


def column_groups(method: Grouped, name: str, weights: Weights, projection: Projection) -> CheckpointTensor:
    """Describe the group of each column [in], which is read with act-order, and otherwise only checked if stored."""
    columns = projection.columns
    fill = partial(_write_groups, method.groups(columns.total))
    if weights.column_groups is None:
        fill = partial(_check_groups, method.group_size or columns.total, columns.start)
        target = weights.weight[:0]
    else:
        target = weights.column_groups[projection.index]
    return CheckpointTensor(
        name=name,
        shape=(columns.total,),
        pieces=(Piece(target, (columns.slice,), fill),),
        types=INTEGERS,
        optional=weights.column_groups is None,
        shared=True,
    )


def zero_bias(projection: Projection) -> CheckpointTensor | None:
    """Return the bias of zeros that some tools store where a model has none."""
    if projection.has_bias:
        return None
    stored = projection.stored_rows
    piece = Piece(torch.empty(0, device="cpu"), (stored.slice,), _check_zeros)
    return CheckpointTensor(name=f"{projection.name}.bias", shape=(stored.total,), pieces=(piece,), optional=True)


def group_span(method: Grouped, projection: Projection) -> Span:
    """Return the groups of columns that a rank has."""
    columns = projection.columns
    if method.group_size is None:
        return Span(0, 1, 1)
    if method.act_order:
        return Span(0, method.groups(columns.total), method.groups(columns.total))
    return columns.by(method.group_size)


def _by_rows(
    method: Grouped, name: str, target: Tensor, projection: Projection, columns: Span, fill: Fill
) -> CheckpointTensor:
    codes, stored = codes_of_words(method.stored_bits), projection.stored_rows
    if stored.start % codes or stored.size % codes:
        raise ModelLoadError(
            f"{name}: words hold {codes} rows each, and a rank would have rows {stored.start} to "
            f"{stored.start + stored.size}; take a smaller --tensor-parallel-size"
        )
    words = _words(stored, method.stored_bits)
    fill_all = partial(_fill_all_words, method.stored_bits, fill, projection.order)
    piece = Piece(target, (words.slice, columns.slice), fill_all)
    return CheckpointTensor(name=name, shape=(words.total, columns.total), pieces=(piece,), types=INTEGERS)


def _words(codes: Span, bits: int) -> Span:
    """Return the span of the words of these codes."""
    return codes.by(codes_of_words(bits)).times(codes_of_words(bits) * bits // WORD_BITS)


def _fill_all_words(
    bits: int,
    fill: Fill,
    order: Tensor | None,
    target: Tensor,
    rows: Rows,  # noqa: ARG001
    values: Tensor,
) -> None:
    """Call `fill` for the rows of all words, part by part; `rows` counts words."""
    step = max(1, _WORDS // bits // values.shape[1]) * bits  # complete words of 3 bits
    for first in range(0, len(values), step):
        part = values[first : first + step]
        place = slice(first * WORD_BITS // bits, (first + len(part)) * WORD_BITS // bits)
        fill(target, place if order is None else order[place].to(target.device), part.to(target.device))


def _unpacked(bits: int, places: tuple[int, ...], words: Tensor) -> Tensor:
    """Return codes uint8 [n * 32 / bits, columns] of words [n, columns]."""
    if bits == 3:
        return _codes(bits, words.t()).t()
    shifts = torch.tensor(places, dtype=torch.int32, device=words.device).mul_(bits).view(1, -1, 1)
    return (words.unsqueeze(1) >> shifts).bitwise_and_(2**bits - 1).to(torch.uint8).flatten(0, 1)


def _codes(bits: int, words: Tensor) -> Tensor:
    """Return codes uint8 [rows, n * 32 / bits] of words [rows, n], of which a code may begin in one and end in the
    next."""
    begin = torch.arange(words.shape[1] * WORD_BITS // bits, device=words.device) * bits
    word, shift = begin // WORD_BITS, begin % WORD_BITS
    unsigned = words.long() & 2**WORD_BITS - 1
    following = unsigned.roll(-1, dims=1)
    pairs: Tensor = unsigned[:, word] >> shift | following[:, word] << (WORD_BITS - shift)
    return pairs.bitwise_and_(2**bits - 1).to(torch.uint8)


def _write_wider(bits: int, more: int, target: Tensor, rows: Rows, words: Tensor) -> None:
    """Write codes of `bits` in `more` bits."""
    for place, part in in_parts(rows, words, _WORDS * bits // WORD_BITS):  # each code takes eight bytes meanwhile
        write(target, place, pack(_codes(bits, part.to(target.device)), more))


def _unpack_rows(bits: int, places: tuple[int, ...], added: int, target: Tensor, rows: Rows, words: Tensor) -> None:
    write(target, rows, _unpacked(bits, places, words + added))


def _pack_rows(bits: int, places: tuple[int, ...], target: Tensor, rows: Rows, words: Tensor) -> None:
    write(target, rows, pack(_unpacked(bits, places, words), bits))


def _write_signed(bits: int, target: Tensor, rows: Rows, values: Tensor) -> None:
    """Write signed numbers as codes from 0 on."""
    half = 2 ** (bits - 1)
    codes = values.to(torch.int16) + half
    if bool(((codes < 0) | (codes >= 2 * half)).any()):
        raise ValueError(f"has numbers that do not fit into {bits} bits")
    write(target, rows, pack(codes.to(torch.uint8), bits))


def _write_words(target: Tensor, rows: Rows, words: Tensor) -> None:
    write(target, rows, words.contiguous().view(torch.uint8))


def _write_finite(target: Tensor, rows: Rows, values: Tensor) -> None:
    if not bool(values.isfinite().all()):
        raise ValueError("has scales that are not finite")
    write(target, rows, values)


def _write_groups(count: int, target: Tensor, rows: Rows, values: Tensor) -> None:
    if bool(((values < 0) | (values >= count)).any()):
        raise ValueError(f"names groups of columns beyond the {count} that have scales")
    write(target, rows, values)


def _check_groups(size: int, start: int, target: Tensor, rows: Rows, values: Tensor) -> None:  # noqa: ARG001
    """Raise ValueError unless the columns from `start` on are in groups of `size` in order."""
    expected = torch.arange(start, start + len(values), device=values.device) // size
    if not torch.equal(values.long(), expected):
        raise ValueError(
            "has columns in groups in another order than the configuration says, which is without act-order"
        )


def _check_zeros(target: Tensor, rows: Rows, values: Tensor) -> None:  # noqa: ARG001
    if bool(values.any()):
        raise ValueError("is a bias that is not zero, and the model has none")
