"""The attention backends: the name that --attention-backend takes, and where the backend is found.

No backend is imported here, so that the command line and the HTTP process know the names without importing torch. A
backend's module has `why_not(device, task)`, which says what stands in its way, beside its class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BackendEntry:
    """Where a backend is found, and whether `auto` may take it."""

    module: str
    """The file beside this one."""
    name: str
    """Of the class in it."""
    measured: bool = False
    """Whether `auto` measures it against `triton` on a GPU."""


BACKENDS: Mapping[str, BackendEntry] = {
    "triton": BackendEntry("triton", "TritonAttention"),
    "varlen": BackendEntry("varlen", "VarlenAttention", measured=True),
    "flashinfer": BackendEntry("flashinfer", "FlashInferAttention", measured=True),
    "torch": BackendEntry("torch_reference", "TorchAttention"),
}
