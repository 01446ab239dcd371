"""What GPUs of some generations lack: conversions to FP8, and shared memory for large tiles. Needs no Triton."""

from __future__ import annotations

from functools import cache

import torch

OLDEST = (8, 0)
"""The compute capability of Ampere. For Turing (T4, 7.5) Triton compiles products without tensor cores, in which
kilobytes of each thread find no register, and there is no bfloat16."""
FP8_SINCE = (8, 9)
"""That of Ada, the first generation with tensor cores and conversions for e4m3; Hopper has 9.0."""
HOPPER_SHARED_MEMORY = 227 << 10
"""Bytes of shared memory that one program may have on Hopper, for which tiles are tuned."""
AMPERE_SHARED_MEMORY = 163 << 10
"""The same of A100. A10, L4, L40S and GeForce of the same and later generations give 99 KiB."""


@cache
def capability(device: torch.device) -> tuple[int, int] | None:
    """Return the compute capability of a GPU, None for a CPU."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else None


@cache
def shared_memory(device: torch.device) -> int:
    """Return the bytes of shared memory that one program may have; in the interpreter, which has no limit, Hopper's."""
    if device.type != "cuda":
        return HOPPER_SHARED_MEMORY
    return int(torch.cuda.get_device_properties(device).shared_memory_per_block_optin)


def converts_fp8(device: torch.device) -> bool:
    """Return True if kernels on `device` may have numbers of type e4m3; elsewhere they take their bits."""
    found = capability(device)
    return found is None or found >= FP8_SINCE
