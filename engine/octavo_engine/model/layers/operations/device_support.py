"""Says with which weights a device computes as a checkpoint stores them. The memory of layers depends on it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from octavo_engine.kernels.triton_support import triton_runs_on
from octavo_engine.model.layers.operations.compute import Compute
from octavo_engine.model.layers.operations.experts_in_turn import ExpertsInTurn
from octavo_engine.model.quantization.e4m3 import multiplies_fp8


@dataclass(frozen=True, slots=True)
class DeviceSupport:
    """The ways to keep and compute weights that a device has; by default only those that every device has."""

    fp8_products: bool = False
    """Whether the device multiplies e4m3 numbers, without dequantizing them."""
    triton_experts: bool = False
    """Whether gated experts with SiLU stay in MXFP4, in codes or in e4m3, because Triton kernels multiply them."""
    keeps_codes: bool = False
    """Whether embedding, head and experts stay in 4 or 8 bits, because C kernels compute with such codes."""
    experts_in_turn: bool = False
    """Whether the device computes one expert after another, so that a step has memory for one expert at a time."""


ANY_DEVICE = DeviceSupport()


def device_support(compute: Compute, device: torch.device, *, fp8_products: bool | None = None) -> DeviceSupport:
    """Return what `device` supports, on which `compute` was chosen.

    `fp8_products`: whether it multiplies in FP8; None: the device, which must then be present, is asked.
    """
    return DeviceSupport(
        fp8_products=multiplies_fp8(device) if fp8_products is None else fp8_products,
        triton_experts=triton_runs_on(device),
        keeps_codes=compute.quantized_vocabulary is not None,
        experts_in_turn=device.type == "cpu" and type(compute.experts) is ExpertsInTurn,
    )
