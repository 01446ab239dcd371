"""bitsandbytes: 4 bits with a table of 16 numbers (NF4 of QLoRA, arXiv 2305.14314; FP4) and LLM.int8 (2208.07339).

4 bits: `weight` uint8 [out * in / 2, 1] holds two codes a byte, the first one in the upper half; the same bytes may be
stored as another type. Each 64 numbers of a row share the scale `absmax`. With double quantization `absmax` holds codes
of 8 bits: a code's number in the table `nested_quant_map` is multiplied with the scale of its block of 256 codes,
`nested_absmax`, and an offset is added.
8 bits: `weight` int8 [out, in], and `SCB` [out] is the number that the code 127 of a row stands for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from octavo_engine.errors import ModelLoadError
from octavo_engine.model.checkpoint.safetensors_file import DTYPE_BYTES
from octavo_engine.model.checkpoint.tensors import CheckpointTensor, Piece, Rows, write
from octavo_engine.model.fields import Fields
from octavo_engine.model.quantization.grouped import Grouped
from octavo_engine.model.quantization.int8 import INT8
from octavo_engine.model.quantization.linear_method import Projection, Weights
from octavo_engine.model.quantization.loading import write_scales
from octavo_engine.model.quantization.module_rules import Quantization, names_in, not_quantized
from octavo_engine.model.quantization.scheme import Scheme, unsupported

_BLOCK, _NESTED_BLOCK = 64, 256
_STORAGES = {"uint8": "U8", "bfloat16": "BF16", "float16": "F16", "float32": "F32"}
"""The types of the stored tensors whose bytes are codes of 4 bits, by `bnb_4bit_quant_storage`."""
_LARGEST_STATE = 4096
"""The most bytes of the JSON object `quant_state`."""
_NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
_HALF_OF_FP4 = (0.0, 0.0052083334885537624, 0.6666666865348816, 1.0, 0.3333333432674408, 0.5, 0.1666666716337204, 0.25)
_TABLES = {"nf4": _NF4, "fp4": (*_HALF_OF_FP4, *(-number for number in _HALF_OF_FP4))}


def _tensors(
    kind: str, nested: bool, storage: str, method: Grouped, weights: Weights, projection: Projection
) -> Iterator[CheckpointTensor]:
    name, stored, columns = f"{projection.name}.weight", projection.stored_rows, projection.columns.total
    if columns % _BLOCK:
        raise ModelLoadError(
            f"{name}: its {columns} columns are not a multiple of {_BLOCK}, so that numbers of two rows share a scale "
            "in bitsandbytes, which is not supported; take an unquantized checkpoint"
        )
    scales = _Scales(projection, weights, nested)

    def flat(suffix: str, per_row: int, fill: Callable[[Tensor], None], types: tuple[str, ...]) -> CheckpointTensor:
        part = slice(stored.start * per_row, (stored.start + stored.size) * per_row)
        shape = (stored.total * per_row, *((1,) if not suffix else ()))
        return CheckpointTensor(name=name + suffix, shape=shape, pieces=(_piece(fill, part),), types=types)

    yield flat("", columns // 2 // DTYPE_BYTES[storage], partial(_write_codes, weights, projection), (storage,))
    yield flat(".absmax", columns // _BLOCK, scales.take_values, ("U8",) if nested else ("F32",))
    if nested:
        yield _unsharded(f"{name}.nested_absmax", partial(scales.take, "nested_absmax"), "F32", None)
        yield _unsharded(f"{name}.nested_quant_map", partial(scales.take, "nested_map"), "F32", 256)
    table = cast("tuple[float, ...]", method.table)
    yield _unsharded(f"{name}.quant_map", partial(_check_table, table), "F32", len(table))
    yield _unsharded(f"{name}.quant_state.bitsandbytes__{kind}", scales.take_state, "U8", None)


def _piece(fill: Callable[[Tensor], None], *part: slice) -> Piece:
    """Return a part of a stored tensor that `fill` alone puts into place."""
    return Piece(torch.empty(0, device="cpu"), part, lambda _, __, values: fill(values))


def _unsharded(name: str, fill: Callable[[Tensor], None], kind: str, size: int | None) -> CheckpointTensor:
    """Return a tensor of `size` numbers (None: any) that each rank reads as a whole."""
    shape = None if size is None else (size,)
    return CheckpointTensor(name=name, shape=shape, pieces=(_piece(fill),), types=(kind,), shared=True)


def _write_codes(weights: Weights, projection: Projection, values: Tensor) -> None:
    """Write the stored bytes [out * in / 2, 1] with halves swapped: in memory the lower half has the first code."""
    columns = projection.columns
    own = values.contiguous().view(torch.uint8).view(-1, columns.total // 2)[:, columns.by(2).slice]
    write(weights.weight[projection.rows], _rows(projection, len(own)), own << 4 | own >> 4)


def _rows(projection: Projection, count: int) -> Rows:
    return slice(0, count) if projection.order is None else projection.order.to("cpu")


@dataclass(slots=True)
class _Scales:
    """The scales of one projection, which are written once all tensors that they depend on have been read."""

    projection: Projection
    weights: Weights
    nested: bool
    found: dict[str, Any] = field(default_factory=dict)

    def take(self, name: str, values: Tensor) -> None:
        """Keep one of the tensors of double quantization."""
        if not bool(values.isfinite().all()):
            raise ValueError("has numbers that are not finite")
        self.found[name] = values.float().flatten()
        self._write_if_complete()

    def take_values(self, values: Tensor) -> None:
        """Keep the values of `absmax`."""
        self.found["values"] = values.clone()
        self._write_if_complete()

    def take_state(self, values: Tensor) -> None:
        """Take the JSON object with the sizes of the stored tensor, which must have this projection's rows."""
        state = _parse_state(values)
        rows, columns = self.projection.first_row + self.projection.stored_rows.total, self.projection.columns.total
        shape = state.get("shape")
        if not isinstance(shape, list) or len(shape) != 2 or type(shape[0]) is not int:
            raise ValueError("has a shape that is not one of rows and columns")
        if state.get("blocksize") != _BLOCK or shape[1] != columns:
            raise ValueError(f"does not have the shape {[rows, columns]} and blocks of {_BLOCK} numbers")
        offset = state.get("nested_offset") or 0.0
        if not isinstance(offset, float):
            raise ValueError("has a nested_offset that is not a floating-point number")
        if self.nested and (shape[0] < rows or state.get("nested_blocksize") != _NESTED_BLOCK):
            raise ValueError(
                f"has double quantization over {shape[0]} rows in blocks of {state.get('nested_blocksize')}, and "
                f"{rows} rows in blocks of {_NESTED_BLOCK} are computed"
            )
        self.found["blocks"] = -(-shape[0] * columns // _BLOCK // _NESTED_BLOCK)
        self.found["offset"] = offset
        self._write_if_complete()

    def _write_if_complete(self) -> None:
        wanted = {"values", "offset", *(("nested_absmax", "nested_map") if self.nested else ())}
        if self.found.keys() < wanted:
            return
        columns, values = self.projection.columns, self.found["values"]
        groups = columns.total // _BLOCK
        numbers = self._dequantized(values, groups) if self.nested else values
        own = numbers.view(-1, groups)[:, columns.by(_BLOCK).slice]
        target = cast("Tensor", self.weights.scale)[self.projection.rows]
        write_scales(target, _rows(self.projection, len(own)), own, or_zero=True)
        self.found.clear()

    def _dequantized(self, codes: Tensor, groups: int) -> Tensor:
        """Return `absmax` in float32 from its codes, of which the first belongs to this rank's first row."""
        scales, table = self.found["nested_absmax"], self.found["nested_map"]
        if len(scales) != self.found["blocks"]:
            raise ValueError(f"has {len(scales)} scales of scales, and {self.found['blocks']} blocks")
        first = (self.projection.first_row + self.projection.stored_rows.start) * groups
        block = torch.arange(first, first + len(codes)) // _NESTED_BLOCK
        return cast("Tensor", table[codes.int()] * scales[block] + self.found["offset"])


def _parse_state(values: Tensor) -> dict[str, Any]:
    try:
        if values.numel() > _LARGEST_STATE:
            raise ValueError
        state = json.loads(bytes(values.flatten().tolist()))
    except (ValueError, RecursionError):
        state = None
    if not isinstance(state, dict):
        raise ValueError("is not the JSON object that bitsandbytes writes")
    return state


def _check_table(table: tuple[float, ...], values: Tensor) -> None:
    """Raise ValueError unless codes stand for the numbers of the type that config.json names."""
    if not torch.allclose(values.float(), torch.tensor(table), atol=1e-6):
        raise ValueError("has other numbers for codes than the type of 4 bits that config.json names")


def _bitsandbytes(config: Fields) -> Quantization:
    return Quantization(_method(config), (not_quantized(config, names_in(config, "llm_int8_skip_modules")),))


def _method(config: Fields) -> Grouped | INT8:
    if config.boolean("load_in_8bit", False):
        return INT8(online=False, name="llm.int8", scale_name="SCB", largest_is_stored=True)
    if not config.boolean("load_in_4bit", False):
        raise unsupported(config, "bitsandbytes with neither load_in_4bit nor load_in_8bit")
    kind = config.text("bnb_4bit_quant_type", default="fp4")
    if kind not in _TABLES:
        raise unsupported(config, f"bitsandbytes with bnb_4bit_quant_type {kind}; nf4 and fp4 are supported")
    if (storage := config.text("bnb_4bit_quant_storage", default="uint8")) not in _STORAGES:
        known = ", ".join(_STORAGES)
        raise unsupported(config, f"bitsandbytes with bnb_4bit_quant_storage {storage}; {known} are supported")
    nested = config.boolean("bnb_4bit_use_double_quant", False)
    return Grouped(kind, 4, _BLOCK, partial(_tensors, kind, nested, _STORAGES[storage]), table=_TABLES[kind])


SCHEME = Scheme(
    name="bitsandbytes",
    readers={"bitsandbytes": _bitsandbytes},
    online=None,
    supported="bitsandbytes (nf4 and fp4 with or without double quantization, LLM.int8)",
)
