"""The registry of attention backends: the module of each name that --attention-backend takes.

No backend is imported here, so that the command line and the HTTP process know the names without importing torch. A
backend's module has `why_not(device, task)`, which returns why it cannot be used, beside its class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BackendEntry:
    """The place of a backend's code, and whether `auto` may select it."""

    module: str
    """The file beside this one."""
    name: str
    """The name of the class in the module."""
    other: bool = False
    """Whether it is another project's, which computes on GPUs what `triton` does."""
    has_run: bool = True
    """Whether it has passed `make gpu-check`. Until then `auto` does not try it: a fault on the device would end each
    start of a pod again."""


BACKENDS: Mapping[str, BackendEntry] = {
    "triton": BackendEntry("triton", "TritonAttention"),
    "varlen": BackendEntry("varlen", "VarlenAttention", other=True, has_run=False),
    "flashinfer": BackendEntry("flashinfer", "FlashInferAttention", other=True, has_run=False),
    "torch": BackendEntry("torch_reference", "TorchAttention"),
}
