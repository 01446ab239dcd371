"""The registry of attention backends: the module and class of each name that --attention-backend accepts.

No backend is imported here, so that the command line and the HTTP process know the names without importing torch.
Besides the class, a backend's module has `why_not(device, task)`, which returns why the backend cannot be used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BackendEntry:
    """The place of a backend's code, and whether `auto` may select it."""

    module: str
    """The name of the module in this package."""
    name: str
    """The name of the class in the module."""
    third_party: bool = False
    """Whether it wraps another project's kernels, which compute on GPUs what `triton` does."""
    verified_on_gpu: bool = True
    """Whether it has passed `make gpu-check`. Until then `auto` does not try it, as a fault on the device would end
    every start of a pod."""


BACKENDS: Mapping[str, BackendEntry] = {
    "triton": BackendEntry("triton", "TritonAttention"),
    "varlen": BackendEntry("varlen", "VarlenAttention", third_party=True, verified_on_gpu=False),
    "flashinfer": BackendEntry("flashinfer", "FlashInferAttention", third_party=True, verified_on_gpu=False),
    "torch": BackendEntry("torch_reference", "TorchAttention"),
}
