"""Asynchronous copies of tensors between host and device.

On a GPU every copy goes through pinned memory and is enqueued on the device's stream, after all earlier launches. On
the CPU nothing is copied.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import torch
from torch import Tensor

_CODES = {torch.int64: "q", torch.int32: "i", torch.float32: "f"}
"""Type codes of the module `array` for the types that `to_device` supports."""


def to_device(values: Sequence[float], device: torch.device, dtype: torch.dtype = torch.int64) -> Tensor:
    """Return `values` as a tensor [n] of `dtype` (int64, int32 or float32) on `device`."""
    if not values:
        return torch.empty(0, dtype=dtype, device=device)
    # Six times as quick as torch.tensor(values), which checks each value's type.
    return copied_to_device(torch.frombuffer(array(_CODES[dtype], values), dtype=dtype), device)


def copied_to_device(host: Tensor, device: torch.device) -> Tensor:
    """Copy a host tensor to `device`; return the tensor itself if that is the CPU."""
    return host if device.type == "cpu" else host.pin_memory().to(device, non_blocking=True)


class ToHost:
    """An asynchronous copy of tensors to the host; `wait` returns them."""

    def __init__(self, *tensors: Tensor) -> None:
        self._tensors = tensors
        self._event: torch.cuda.Event | None = None
        if tensors and tensors[0].is_cuda:
            self._tensors = tuple(_pinned_copy(tensor) for tensor in tensors)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()

    def wait(self) -> tuple[Tensor, ...]:
        """Wait until the copy is done, and return the tensors on the host. Any thread may wait."""
        if self._event is not None:
            self._event.synchronize()
        return self._tensors


def _pinned_copy(tensor: Tensor) -> Tensor:
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)
