"""Matrix multiplication with weights, several projections of the same input fused into one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import cast

from torch import Tensor, nn

from octavo_engine.kernels.cpu.layers import LinearWeights
from octavo_engine.kernels.fp8_activations import Quantized, Scaling
from octavo_engine.model.checkpoint.names import QKVLayout
from octavo_engine.model.checkpoint.tensors import FLOATS, CheckpointTensor, Span, joined, plain, transposed
from octavo_engine.model.layers.adapters.lora import LoraLayer
from octavo_engine.model.layers.options import LayerOptions
from octavo_engine.model.layers.residual import ResidualStream, ResidualSum
from octavo_engine.model.quantization.linear_method import LinearMethod, LinearShape, Projection, in_file
from octavo_engine.model.quantization.unquantized import UNQUANTIZED, parameter


class Linear(nn.Module):
    """A linear layer y = x W^T + b with W [sum of parts, in]: the rows of several projections, one after another.

    The linear method `method` decides how W is stored and multiplied. Memory is not initialised; the loader fills it.
    """

    def __init__(
        self,
        columns: Span,
        parts: Sequence[Span],
        *,
        bias: bool,
        options: LayerOptions,
        method: LinearMethod | None = None,
        orders: Sequence[Tensor | None] | None = None,
        summed: bool = False,
        layout: QKVLayout | None = None,
    ) -> None:
        """`columns` is this rank's part of the projections' input, and `parts` are its parts of their outputs.

        `orders`: for each part, the row that each stored row becomes; None: the same row. `summed`: each rank has some
        columns, and the ranks' results are summed; only the first rank has the bias. `layout`: the layout of parts
        that share a tensor; None: one after another.
        """
        super().__init__()
        self.columns, self.spans, self.options = columns, tuple(parts), options
        self.method = method or UNQUANTIZED
        self.orders = orders or (None,) * len(parts)
        self.layout = layout
        self.names: tuple[str, ...] = ()
        """The checkpoint's names of the projections; empty until `tensors` is called."""
        self.lora: LoraLayer | None = None
        """The layer's LoRA adapters, if adapters are served."""
        shape, dtype, device = LinearShape(self.parts, columns), options.dtype, options.device
        self.weights = self.method.create(shape, dtype, device, fp8_products=options.support.fp8_products)
        self.has_bias = bias
        own = bias and not (summed and options.ranks.shard.rank)
        self.weight = self.weights.weight
        self.bias = parameter(shape.rows, dtype=dtype, device=device) if own else None
        self.scale, self.input_scale = self.weights.scale, self.weights.input_scale
        self.zero, self.minimum = self.weights.zero, self.weights.minimum
        self.row_scale = self.weights.row_scale
        self.super_scale, self.super_minimum = self.weights.super_scale, self.weights.super_minimum
        self.column_groups = self.weights.column_groups

    @property
    def parts(self) -> tuple[int, ...]:
        """The number of this rank's rows of each projection."""
        return tuple(span.size for span in self.spans)

    @property
    def plain(self) -> bool:
        """True if the weight is stored in the dtype that products are computed in."""
        return self.weight.dtype == self.weights.dtype

    def dequantizes(self) -> bool:
        """Return True if products dequantize the weight, as this device has no kernel for it as it is stored."""
        quantized, weights = self.weights.quantized, self.weights
        if self.plain or weights.in_8_bits:
            return False
        return quantized is None or not self.options.compute.knows_codes(quantized, weights.dtype)

    def for_kernels(self) -> LinearWeights | None:
        """Return the weights for kernels that compute whole layers; None: the kernels do not support such a weight."""
        quantized = self.weights.quantized
        if quantized is not None and quantized.known_to_kernels and quantized.column_order is None:
            return LinearWeights(quantized, self.bias)
        return LinearWeights(self.weight, self.bias) if self.plain else None

    @property
    def input_scaling(self) -> Scaling | None:
        """How the input is quantized, by the norm or gate before this layer or by this layer; None: not at all."""
        return None if self.lora is not None else self.method.input_scaling(self.weights)  # adapters need plain input

    @property
    def scratch_bytes(self) -> int:
        """The bytes that a product needs besides its input and result, for any number of tokens."""
        return self.method.scratch_bytes(self.weights)

    def quantized_input_bytes(self, inner: int) -> int:
        """Return an upper bound of one token's bytes for the 8-bit inputs of a block's linears; 0 if not quantized.

        This linear reads the block's input, a second one reads `inner` columns within the block. The norm before the
        block may quantize the input and also keep it in the dtype of the products. With act-order each linear's input
        is first copied in the order of the weight's columns, in the dtype of the products.
        """
        if self.method is UNQUANTIZED:
            return 0
        hidden = self.columns.size
        read = max(inner, hidden)
        kept = hidden if self.column_groups is None else read
        return read + kept * self.options.dtype.itemsize

    def forward(self, x: Tensor | Quantized) -> Tensor:
        """Map x [T, in] to [T, sum of parts]; x may be quantized, but only as `input_scaling` says."""
        return self._multiply(x, None)

    def _multiply(self, x: Tensor | Quantized, addend: Tensor | None) -> Tensor:
        quantized, compute, product = self.weights.quantized, self.options.compute, None
        if quantized is not None:
            product = compute.quantized(cast("Tensor", x), quantized, self.bias, addend)
        if product is None:
            product = self.method.apply(self.weights, x, self.bias, addend, compute)
        return product if self.lora is None else self.lora.add_to(product, cast("Tensor", x))

    def add_to(self, residual: Tensor | None, x: Tensor | Quantized) -> ResidualStream:
        """Add all ranks' products with their x [T, in] to `residual` [T, sum of parts], which may be overwritten.

        The epilogue of the first rank's product adds the residual. Products in 8 bits have no such epilogue: then the
        next norm adds the residual, on all ranks if on one. If `residual` is None, return the sum of the products.
        """
        ranks = self.options.ranks
        if residual is None:
            return ranks.all_reduce(self(x))
        if self.weights.in_8_bits or self.weights.leaves_residual:
            return ResidualSum(ranks.all_reduce(self(x)), residual)
        addend = ranks.on_first_rank(residual)
        return ranks.all_reduce(self._multiply(x, addend))

    def tensors(self, *names: str) -> Iterator[CheckpointTensor]:
        """Yield the layer's tensors in a checkpoint, given the name of each part's projection.

        Parts with the same name are stored as one tensor.
        """
        self.names = names
        for tensor in joined(self._tensors(names)):
            # Codes, such as bitsandbytes', have rows even if a family's matrices in floating point have columns.
            as_columns = self.options.names.transposed and tensor.name.endswith(".weight") and tensor.types == FLOATS
            yield transposed(tensor) if as_columns or tensor.as_columns else tensor

    def _tensors(self, names: Sequence[str]) -> Iterator[CheckpointTensor]:
        for projection in self.projections(names):
            yield from self.method.tensors(self.weights, projection)
            name, stored = projection.name, projection.stored_rows
            if self.bias is not None:
                yield plain(f"{name}.bias", self.bias[projection.rows], stored, order=projection.order)
            elif self.has_bias:
                yield CheckpointTensor(name=f"{name}.bias", shape=(stored.total,), pieces=())

    def projections(self, names: Sequence[str], layout: QKVLayout | None = None) -> Iterator[Projection]:
        """Yield the projections, or parts of them, in the order in which their rows are stored.

        `layout`: that of other tensors of the same rows (adapters); None: the checkpoint's.
        """
        layout = layout or self.layout
        ends = accumulate(self.parts)
        parts = [
            Projection(name, slice(end - span.size, end), span, self.columns, order, index, self.has_bias)
            for index, (name, span, end, order) in enumerate(zip(names, self.spans, ends, self.orders, strict=True))
        ]
        if layout is None:
            yield from in_file(parts)
            return
        for name in dict.fromkeys(names):
            laid_out = [index for index in layout.order if index < len(names) and names[index] == name]
            sharing = laid_out or [index for index, each in enumerate(names) if each == name]
            groups = layout.groups if len(laid_out) > 1 else 1
            yield from in_file(parts[index].share(group, groups) for group in range(groups) for index in sharing)

    def misaligned(self) -> Iterator[tuple[Span, int]]:
        """Yield each dimension whose size the method does not support, with the number it must be a multiple of."""
        rows, columns = self.method.row_alignment, self.method.column_alignment
        wanted = [(self.columns, columns), *((span, rows) for span in self.spans)]
        yield from ((span, alignment) for span, alignment in wanted if span.size % alignment)
