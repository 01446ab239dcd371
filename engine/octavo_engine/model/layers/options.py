"""The options that all layers of a decoder are built with: ranks, operations, dtype, device, names, quantization."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch

from octavo_engine.model.checkpoint.names import SAME_NAMES, StoredNames, TensorNames
from octavo_engine.model.layers.operations.compute import Compute
from octavo_engine.model.layers.operations.device_support import ANY_DEVICE, DeviceSupport
from octavo_engine.model.quantization.dequantized import Dequantized
from octavo_engine.model.quantization.linear_method import LinearMethod, LinearShape, Weights
from octavo_engine.model.quantization.module_rules import Quantization
from octavo_engine.model.quantization.unquantized import UNQUANTIZED
from octavo_engine.model.tensor_parallel.collectives import Collectives


@dataclass(frozen=True, slots=True)
class LayerOptions:
    """Options shared by all layers. On the device `meta` nothing is allocated, which is enough for a memory plan."""

    ranks: Collectives
    compute: Compute
    dtype: torch.dtype
    device: torch.device
    names: TensorNames
    """The checkpoint's names of tensors."""
    support: DeviceSupport = ANY_DEVICE
    """What the device computes with weights as they are stored."""
    quantization: Quantization | None = None
    """How linear layers are stored; None: in the dtype of the products."""
    stored_names: StoredNames = SAME_NAMES
    """The names of tensors in the files of a larger model."""

    def method(self, layer: int, *roles: str) -> LinearMethod:
        """Return the linear method of the layer whose projections have these roles in `names`."""
        return self.method_of(*(self.names.of_layer(role, layer) for role in roles))

    def method_of(self, *names: str) -> LinearMethod:
        """Return the linear method of a layer with these projections; `Dequantized` where their methods differ."""
        found = tuple(self.stored_by(name) for name in names)
        return found[0] if len(set(found)) == 1 else Dequantized(found)

    def stored_by(self, name: str) -> LinearMethod:
        """Return the method by which a checkpoint stores the module `name`."""
        return UNQUANTIZED if self.quantization is None else self.quantization.method(*self.stored_names.stored(name))

    def kept_by(self, name: str) -> LinearMethod:
        """Return the method of the expert `name`, preferably one that keeps codes, which the device multiplies."""
        optional = None if self.quantization is None else self.quantization.kept_method(name)
        return self.stored_by(name) if optional is None else optional

    def vocabulary(self, name: str, shape: LinearShape) -> tuple[LinearMethod, Weights]:
        """Return the method by which the embedding or head of this name is read, and memory for the weight.

        The memory holds codes where the device computes with them, otherwise numbers in the dtype of the products.
        """
        quantization = self.quantization
        if quantization is None:
            return UNQUANTIZED, UNQUANTIZED.create(shape, self.dtype, self.device, fp8_products=False)
        stored = self.stored_by(name) if quantization.head and name == self.names.head else UNQUANTIZED
        for method in (quantization.kept_method(name), stored) if self.support.keeps_codes else ():
            if method is None:
                continue
            create = partial(method.create, shape, self.dtype, fp8_products=False)
            quantized = create(device=torch.device("meta")).quantized
            if quantized is not None and quantized.known_to_kernels:
                return method, create(device=self.device)
        return stored, UNQUANTIZED.create(shape, self.dtype, self.device, fp8_products=False)

    def alignment(self, *names: str, needed: bool = False) -> int:
        """Return the multiple in which ranks should divide a dimension that is rows or columns of these modules.

        `needed`: the multiple that it must be of.
        """
        methods = {self.stored_by(name) for name in names}
        if needed:
            return max(max(method.row_alignment, method.column_alignment) for method in methods)
        return max(method.rank_alignment for method in methods)
