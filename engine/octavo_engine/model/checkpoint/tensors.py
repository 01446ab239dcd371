"""A layer's description of a tensor in a checkpoint: its name and shape, and the parameters that its values fill."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

FLOATS = ("F64", "F32", "F16", "BF16")
"""safetensors' names of the types that are cast to the model's own."""

Rows = slice | Tensor
"""Rows of a target: consecutive ones, or their indices, int64."""
Fill = Callable[[Tensor, Rows, Tensor], None]
"""Writes values into these rows of a target; ValueError says what is wrong with the values."""


@dataclass(frozen=True, slots=True)
class Span:
    """The part [start, start + size) of a dimension of `total` that a rank has."""

    start: int
    size: int
    total: int
    what: str = ""
    """A name for the dimension's elements, for messages."""

    @property
    def slice(self) -> slice:
        """The part as a slice of the unsharded dimension."""
        return slice(self.start, self.start + self.size)

    def times(self, count: int) -> Span:
        """Return the span of a dimension that has `count` elements for each element of this one."""
        return replace(self, start=self.start * count, size=self.size * count, total=self.total * count)

    def by(self, count: int) -> Span:
        """Return the span of a dimension with an element for each `count` of this one (the last may have fewer).

        This span must begin at a multiple of `count`.
        """
        start, end, total = self.start // count, -(-(self.start + self.size) // count), -(-self.total // count)
        return replace(self, start=start, size=end - start, total=total)


def unsharded(size: int, what: str = "") -> Span:
    """Return a span that is a whole dimension of this size."""
    return Span(0, size, size, what)


def write(target: Tensor, rows: Rows, values: Tensor) -> None:
    """Cast `values` and copy them into these rows of `target`; ValueError unless they are finite in its dtype."""
    if isinstance(rows, slice):
        written = target[rows].copy_(values)
    else:
        written = values.to(target.device, target.dtype)
        if target.dtype.itemsize == 1:  # PyTorch indexes no e4m3 on the CPU
            target.view(torch.uint8)[rows] = written.view(torch.uint8)
        else:
            target[rows] = written
    check_finite(written, values)


def check_finite(written: Tensor, values: Tensor) -> None:
    """Raise ValueError unless all written numbers are finite: with others, any answer could be wrong."""
    if written.dtype == torch.float8_e4m3fn:  # it has no infinity, and NaN where all bits but the sign are set
        finite = not bool((written.view(torch.uint8) & 0x7F == 0x7F).any())
    elif written.dtype.itemsize > 1 and written.is_floating_point() and written.numel():
        finite = bool(torch.stack(written.aminmax()).isfinite().all())  # many times quicker than isfinite() of all
    else:
        return
    if not finite and written.dtype == torch.float16 and bool(values.isfinite().all()):
        raise ValueError("holds a number that is too large for float16: use --dtype bfloat16 or float32")
    if not finite:
        raise ValueError(f"holds a number that is not finite in {str(written.dtype).removeprefix('torch.')}")


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a stored tensor, and where it belongs."""

    target: Tensor
    """A view of a parameter, with a row for each row of the part."""
    part: tuple[slice, ...] = ()
    """The part in the stored tensor's first dimensions; of further dimensions it has everything."""
    fill: Fill = write
    order: Tensor | None = None
    """The row of the target that each row of the part becomes, int64; None: the same one."""
    transposed: bool = False
    """Whether stored rows are columns of the target."""

    def put(self, values: Tensor, first: int = 0) -> None:
        """Fill the target's rows from `first` on with `values`, rows of the part; a single number is one row."""
        if self.transposed:
            values = values.t()
        rows: Rows = slice(first, first + (len(values) if values.dim() else 1))
        if self.order is not None:
            rows = self.order[rows].to(self.target.device)
        self.fill(self.target, rows, values)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointTensor:
    """A tensor of the model's checkpoint: its name and shape, and the parameters that its parts fill."""

    name: str
    shape: tuple[int, ...] | None
    """The shape as stored; None: any."""
    pieces: tuple[Piece, ...]
    """The parts that this rank reads; there may be none."""
    types: tuple[str, ...] = FLOATS
    """safetensors' names of the types it may have."""
    optional: bool = False
    late: bool = False
    """Whether the tensor changes parameters that other tensors have filled, and so is read after all of them."""
    squeezed: bool = False
    """Whether dimensions of size 1 do not count in its shape."""
    as_columns: bool = False
    """Whether the file has its transpose; `shape` and `pieces` describe the tensor before it is transposed."""
    at_once: bool = False
    """Whether each piece has to be filled by one call, since the result depends on all values of the piece."""
    shared: bool = False
    """Whether several projections that are stored as one tensor share this one tensor, such as a scale."""


def transposed(tensor: CheckpointTensor) -> CheckpointTensor:
    """Return the tensor of the same matrix that is stored as its transpose."""
    pieces = (replace(piece, part=piece.part[::-1], transposed=True) for piece in tensor.pieces)
    shape = None if tensor.shape is None else tensor.shape[::-1]
    return replace(tensor, shape=shape, pieces=tuple(pieces), as_columns=False)


def plain(name: str, target: Tensor, *spans: Span, order: Tensor | None = None) -> CheckpointTensor:
    """Describe a tensor that is cast and copied, of which a rank has `spans` of the first dimensions."""
    shape = *(span.total for span in spans), *target.shape[len(spans) :]
    part = tuple(span.slice for span in spans)
    return CheckpointTensor(name=name, shape=shape, pieces=(Piece(target, part, order=order),))


def with_unit_rows(tensor: CheckpointTensor) -> CheckpointTensor:
    """Return the tensor [rows, columns] whose rows are divided by their lengths while they are read.

    They are divided in the type that they are stored in, as in Baichuan's own code; a copy of a large head in float32
    would take 2.6 GB until it is read.
    """

    def divided(fill: Fill, target: Tensor, rows: Rows, values: Tensor) -> None:
        fill(target, rows, F.normalize(values, dim=-1))

    pieces = tuple(replace(piece, fill=partial(divided, piece.fill)) for piece in tensor.pieces)
    return replace(tensor, pieces=pieces)


def vector_of_first_rank(name: str, target: Tensor | None, size: Span) -> CheckpointTensor:
    """Describe a vector that only one rank adds to the sum of all ranks; on the others `target` is None."""
    if target is None:
        return CheckpointTensor(name=name, shape=(size.total,), pieces=())
    return plain(name, target, size)


def ignored(name: str) -> CheckpointTensor:
    """Return a tensor that some checkpoints have and that is not read."""
    return CheckpointTensor(name=name, shape=None, pieces=(), optional=True)


def joined(tensors: Iterable[CheckpointTensor]) -> Iterator[CheckpointTensor]:
    """Join tensors of the same name, which are rows of several projections, to the one tensor that is stored.

    Each tensor's shape and `part` count from its own first row; in the joined tensor the rows follow one another.
    """
    together: dict[str, list[CheckpointTensor]] = {}
    for tensor in tensors:
        together.setdefault(tensor.name, []).append(tensor)
    for parts in together.values():
        yield parts[0] if len(parts) == 1 else _join(parts)


def _join(parts: list[CheckpointTensor]) -> CheckpointTensor:
    first, pieces, rows = parts[0], list[Piece](), 0
    for tensor in parts:
        pieces += (replace(piece, part=_after(rows, piece.part)) for piece in tensor.pieces)
        rows += tensor.shape[0] if tensor.shape and not first.shared else 0
    shape = (rows, *first.shape[1:]) if first.shape and not first.shared else first.shape
    return replace(first, shape=shape, pieces=tuple(pieces))


def _after(rows: int, part: tuple[slice, ...]) -> tuple[slice, ...]:
    return (slice(part[0].start + rows, part[0].stop + rows), *part[1:]) if part else part
