"""The options that all layers of a decoder are built with."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from octavo_engine.model.collectives import Collectives
from octavo_engine.model.layers.compute import Compute
from octavo_engine.model.names import SAME_NAMES, StoredNames, TensorNames
from octavo_engine.model.quantization.dequantized import Dequantized
from octavo_engine.model.quantization.linear_method import LinearMethod
from octavo_engine.model.quantization.selection import Quantization
from octavo_engine.model.quantization.unquantized import UNQUANTIZED


@dataclass(frozen=True, slots=True)
class LayerOptions:
    """Options shared by all layers; on the device `meta` nothing is allocated, which is enough for a memory plan."""

    ranks: Collectives
    compute: Compute
    dtype: torch.dtype
    device: torch.device
    names: TensorNames
    """The checkpoint's names of tensors."""
    fp8_products: bool
    """Whether the device multiplies e4m3 numbers."""
    mxfp4_experts: bool = False
    """Whether experts in MXFP4 stay so, because the device multiplies them."""
    quantization: Quantization | None = None
    """The storage of linear layers; None: the type that is computed in."""
    stored_names: StoredNames = SAME_NAMES
    """The names of tensors in the files of a larger model."""

    def method(self, layer: int, *roles: str) -> LinearMethod:
        """The linear method of the layer whose projections have these roles in `names`."""
        return self.method_of(*(self.names.of_layer(role, layer) for role in roles))

    def method_of(self, *names: str) -> LinearMethod:
        """The linear method of a layer whose projections have these names; dequantized where theirs differ."""
        found = tuple(self.stored_by(name) for name in names)
        return found[0] if len(set(found)) == 1 else Dequantized(found)

    def stored_by(self, name: str) -> LinearMethod:
        """Return the method by which a checkpoint stores the module `name`."""
        return UNQUANTIZED if self.quantization is None else self.quantization.method(*self.stored_names.stored(name))

    def head_stored_by(self, name: str) -> LinearMethod:
        """The linear method of the head, which most schemes leave unquantized."""
        return self.stored_by(name) if self.quantization is not None and self.quantization.head else UNQUANTIZED

    def alignment(self, *names: str) -> int:
        """Ranks share a size that is rows or columns of these modules in multiples of this."""
        methods = {self.stored_by(name) for name in names}
        return max(max(method.row_alignment, method.column_alignment) for method in methods)
