"""Matrix multiplication with weights, several projections of the same input fused into one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import cast

from torch import Tensor, nn

from octavo_engine.kernels.cpu.layers import LinearWeights
from octavo_engine.kernels.fp8_activations import Quantized, Scaling
from octavo_engine.model.checkpoint import CheckpointTensor, Span, joined, plain, transposed
from octavo_engine.model.layers.lora import LoraLayer
from octavo_engine.model.layers.options import LayerOptions
from octavo_engine.model.layers.residual import ResidualStream, ResidualSum
from octavo_engine.model.names import QKVLayout
from octavo_engine.model.quantization.linear_method import LinearMethod, LinearShape, Projection
from octavo_engine.model.quantization.unquantized import UNQUANTIZED, parameter


class Linear(nn.Module):
    """y = x W^T + b with W [sum of parts, in]: the rows of several projections, one after another.

    How W is stored and multiplied with is its `method`'s business. Memory is not initialised; the loader fills it.
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
        """`columns` and each of `parts` are what this rank has of a projection's.

        `orders`: for each part which of its rows a checkpoint's are, None: the same. `summed`: ranks have columns, and
        their results are summed; the bias is the first rank's alone. `layout`: how parts that share a tensor lie in it;
        None: one after another.
        """
        super().__init__()
        self.columns, self.spans, self.options = columns, tuple(parts), options
        self.method = method or UNQUANTIZED
        self.orders = orders or (None,) * len(parts)
        self.layout = layout
        self.names: tuple[str, ...] = ()
        """The checkpoint's names of its projections; known once `tensors` was called."""
        self.lora: LoraLayer | None = None
        """Its adapters, if adapters are served."""
        shape, dtype, device = LinearShape(self.parts, columns), options.dtype, options.device
        self.weights = self.method.create(shape, dtype, device, fp8_products=options.fp8_products)
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
        """The rows of each projection."""
        return tuple(span.size for span in self.spans)

    @property
    def plain(self) -> bool:
        """True if its weight is stored in the type that it is computed in."""
        return self.weight.dtype == self.weights.dtype

    def for_kernels(self) -> LinearWeights | None:
        """Return the weights for kernels that compute whole layers; None: they do not know such a weight."""
        coded = self.weights.coded
        if coded is not None and coded.known_to_kernels:
            return LinearWeights(coded, self.bias)
        return LinearWeights(self.weight, self.bias) if self.plain else None

    @property
    def input_scaling(self) -> Scaling | None:
        """The quantization of its input, done by the layer before or by this one; None: none."""
        return None if self.lora is not None else self.method.input_scaling(self.weights)  # adapters read it as it is

    @property
    def scratch_bytes(self) -> int:
        """Memory that a product takes besides its input and result, whatever the number of tokens."""
        return self.method.scratch_bytes(self.weights)

    def quantized_input_bytes(self, inner: int) -> int:
        """A bound on a token's memory for the inputs of a block's linears in 8 bits; 0 if they are not quantized.

        This one reads what comes into the block, another one `inner` columns within it. The norm before it may
        quantize its input, and keep it in the type that is computed in too.
        """
        if self.method is UNQUANTIZED:
            return 0
        hidden = self.columns.size
        return max(inner, hidden) + hidden * self.options.dtype.itemsize

    def forward(self, x: Tensor | Quantized) -> Tensor:
        """[T, in] to [T, sum of parts]; x is quantized at most as `input_scaling` says."""
        return self._multiply(x, None)

    def _multiply(self, x: Tensor | Quantized, addend: Tensor | None) -> Tensor:
        coded, compute, product = self.weights.coded, self.options.compute, None
        if coded is not None:
            product = compute.coded(cast("Tensor", x), coded, self.bias, addend)
        if product is None:
            product = self.method.apply(self.weights, x, self.bias, addend, compute)
        return product if self.lora is None else self.lora.add_to(product, cast("Tensor", x))

    def add_to(self, residual: Tensor | None, x: Tensor | Quantized) -> ResidualStream:
        """`residual` [T, sum of parts], which may be overwritten, and all ranks' products with their x [T, in].

        They are added in the epilogue of the first rank's product. Products in 8 bits have none that could: each rank
        leaves its residual to the norm that comes next, and all ranks do so if one may. None: the products alone.
        """
        ranks = self.options.ranks
        if residual is None:
            return ranks.all_reduce(self(x))
        if self.weights.in_8_bits or self.weights.leaves_residual:
            return ResidualSum(ranks.all_reduce(self(x)), residual)
        addend = ranks.on_first_rank(residual)
        return ranks.all_reduce(self._multiply(x, addend))

    def tensors(self, *names: str) -> Iterator[CheckpointTensor]:
        """Yield its tensors in a checkpoint, given the name of each part's projection.

        Parts of one name are one tensor.
        """
        self.names = names
        for tensor in joined(self._tensors(names)):
            as_columns = self.options.names.transposed and tensor.name.endswith(".weight")
            yield transposed(tensor) if as_columns or tensor.as_columns else tensor

    def _tensors(self, names: Sequence[str]) -> Iterator[CheckpointTensor]:
        for projection in self.projections(names):
            yield from self.method.tensors(self.weights, projection)
            name, stored = projection.name, projection.stored_rows
            if self.bias is not None:
                yield plain(f"{name}.bias", self.bias[projection.rows], stored, order=projection.order)
            elif self.has_bias:
                yield CheckpointTensor(name=f"{name}.bias", shape=(stored.total,), pieces=())

    def projections(self, names: Sequence[str]) -> Iterator[Projection]:
        """The projections, or parts of them, in the order in which their rows are stored."""
        ends = accumulate(self.parts)
        parts = [
            Projection(name, slice(end - span.size, end), span, self.columns, order, index, self.has_bias)
            for index, (name, span, end, order) in enumerate(zip(names, self.spans, ends, self.orders, strict=True))
        ]
        if self.layout is None:
            yield from parts
            return
        for name in dict.fromkeys(names):
            sharing = [index for index in self.layout.order if index < len(names) and names[index] == name]
            groups = self.layout.groups if len(sharing) > 1 else 1
            yield from (parts[index].share(group, groups) for group in range(groups) for index in sharing)

    def misaligned(self) -> Iterator[tuple[Span, int]]:
        """The dimensions that the method cannot have in such sizes, and of what they should be multiples."""
        rows, columns = self.method.row_alignment, self.method.column_alignment
        wanted = [(self.columns, columns), *((span, rows) for span in self.spans)]
        yield from ((span, alignment) for span, alignment in wanted if span.size % alignment)
