"""What all layers of a decoder are built with."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from octavo_engine.model.collectives import Collectives
from octavo_engine.model.layers.compute import Compute
from octavo_engine.model.names import TensorNames


@dataclass(frozen=True, slots=True)
class LayerOptions:
    """The same for every layer; on the device `meta` nothing is allocated, which is enough for a plan."""

    ranks: Collectives
    compute: Compute
    dtype: torch.dtype
    device: torch.device
    names: TensorNames
    """What the checkpoint calls tensors."""
    fp8_products: bool
    """Whether the device multiplies e4m3 numbers."""
