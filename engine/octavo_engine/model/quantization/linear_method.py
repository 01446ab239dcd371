"""The interface of quantization schemes for linear layers: create parameters, load them, multiply, count memory.

LoRA adapters (`layers/linear.py`) are not a part of the method: they add to its result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import KW_ONLY, dataclass, fields, replace
from typing import Protocol

import torch
from torch import Tensor, nn

from octavo_engine.kernels.cpu.quantized import QuantizedWeight
from octavo_engine.kernels.fp8_activations import Quantized, Scaling
from octavo_engine.model.checkpoint.tensors import CheckpointTensor, Span


@dataclass(slots=True)
class Weights:
    """The parameters of one linear layer, besides its bias."""

    weight: nn.Parameter
    """[out, in], in the type it is stored in; numbers of fewer than 8 bits share bytes: [out, bytes]."""
    scale: nn.Parameter | None = None
    """Factors of the weight's numbers; the shape is the method's choice."""
    _: KW_ONLY
    zero: nn.Parameter | None = None
    """Numbers that are subtracted before scaling, in the shape of `scale`."""
    minimum: nn.Parameter | None = None
    """Numbers that are added after scaling, in the shape of `scale`."""
    row_scale: nn.Parameter | None = None
    """Further factors or divisors of each row, float32 [out, 1]."""
    super_scale: nn.Parameter | None = None
    """Factors of scales that are whole numbers; the shape is the method's choice."""
    super_minimum: nn.Parameter | None = None
    """Factors of the minima."""
    column_groups: nn.Parameter | None = None
    """The column of `scale` that each column of the weight uses, int32 [parts, in]; None: consecutive ones share
    one."""
    parts: tuple[int, ...] = ()
    """The rows of each projection, where a method treats them differently."""
    input_scale: nn.Parameter | None = None
    """The checkpoint's static scale of the input, float32 [1]."""
    quantized: QuantizedWeight | None = None
    """The same memory as kernels that multiply codes read it, if the numbers are codes with scales. Where there are
    such kernels they compute the products instead of the method."""
    first_column: int = 0
    """The place of the first column in a group of columns that share a scale, if ranks' parts begin within groups."""
    dtype: torch.dtype = torch.float32
    """The type of results."""
    in_8_bits: bool = False
    """Whether products are computed in 8 bits; otherwise in the dtype of the activations."""
    leaves_residual: bool = False
    """Whether products have no addend, because some rank's may be in 8 bits, even if this rank's are not."""

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The parameters that are not None, by the names of their fields."""
        found = ((each.name, getattr(self, each.name)) for each in fields(self))
        return {name: value for name, value in found if isinstance(value, nn.Parameter)}


@dataclass(frozen=True, slots=True)
class LinearShape:
    """The shape of a rank's part of a linear layer's weight."""

    parts: tuple[int, ...]
    """The rows of each projection."""
    columns: Span

    @property
    def rows(self) -> int:
        """The rows of all projections."""
        return sum(self.parts)


@dataclass(frozen=True, slots=True)
class Projection:
    """One of the projections whose rows a linear layer consists of."""

    name: str
    """The checkpoint's name, without `.weight`."""
    rows: slice
    """The rows of the layer's parameters that it fills."""
    stored_rows: Span
    """The rank's part of the projection's rows."""
    columns: Span
    order: Tensor | None = None
    """The row of the projection that each stored row becomes; None: the same one."""
    index: int = 0
    """Its index among the layer's projections."""
    has_bias: bool = True
    first_row: int = 0
    """The row of the stored tensor with which the projection begins, where several are stored as one tensor."""

    def share(self, index: int, count: int) -> Projection:
        """Return one of `count` equal parts of the stored rows, with the rank's rows of it, perhaps none."""
        stored = self.stored_rows
        size = stored.total // count
        start = max(stored.start, index * size)
        own = max(0, min(stored.start + stored.size, (index + 1) * size) - start)
        first = min(start - stored.start, stored.size)
        rows = slice(self.rows.start + first, self.rows.start + first + own)
        order = None if self.order is None else self.order[first : first + own] - first
        span = Span(start - index * size if own else 0, own, size, stored.what)
        return replace(self, rows=rows, stored_rows=span, order=order)


def in_file(projections: Iterable[Projection]) -> Iterator[Projection]:
    """Yield projections with the rows with which they begin in their stored tensors, where some share a name."""
    rows: dict[str, int] = {}
    for projection in projections:
        first = rows.get(projection.name, 0)
        rows[projection.name] = first + projection.stored_rows.total
        yield replace(projection, first_row=first)


class Products(Protocol):
    """The matrix products of a device (layers/operations/compute.py)."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None, addend: Tensor | None = None) -> Tensor:
        """Return x [T, in] weight [out, in]^T + bias [out] + addend [T, out]; the addend may be overwritten."""


class LinearMethod(Protocol):
    """A way to store linear layers' weights and to multiply with them.

    It is only given `Weights` that it has created.
    """

    @property
    def name(self) -> str:
        """The name for the plan's table and log lines."""

    @property
    def row_alignment(self) -> int:
        """The multiple that the rows of each projection, and of a rank's part of it, must be of."""

    @property
    def column_alignment(self) -> int:
        """The multiple that the columns of each projection, and of a rank's part of it, must be of."""

    @property
    def rank_alignment(self) -> int:
        """The multiple in which ranks should divide rows or columns, for the sake of speed where it is not needed."""

    def create(self, shape: LinearShape, dtype: torch.dtype, device: torch.device, *, fp8_products: bool) -> Weights:
        """Return uninitialised memory for a weight of `shape` that is computed in `dtype`.

        `fp8_products`: whether the device multiplies e4m3 numbers.
        """

    def tensors(self, weights: Weights, projection: Projection) -> Iterator[CheckpointTensor]:
        """Yield one projection's tensors in a checkpoint, and how they fill the weights."""

    def input_scaling(self, weights: Weights) -> Scaling | None:
        """Return how inputs have to be quantized, before `apply` or in it; None: not at all."""

    def apply(
        self, weights: Weights, x: Tensor | Quantized, bias: Tensor | None, addend: Tensor | None, products: Products
    ) -> Tensor:
        """Return x [T, in] weight^T + bias [out] + addend [T, out]; the addend may be overwritten.

        With weights that are multiplied `in_8_bits` there is no addend.
        """

    def dequantized(self, weights: Weights, dtype: torch.dtype) -> Tensor:
        """Return the dequantized weight [out, in], in `dtype`."""

    def scratch_bytes(self, weights: Weights) -> int:
        """Return the bytes that `apply` needs besides its arguments and result, for any number of tokens."""
