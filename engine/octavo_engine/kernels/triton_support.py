"""Decides on which devices Triton kernels can be launched."""

from __future__ import annotations

import functools
import os

import torch

from octavo_engine.kernels.triton_driver import use_packaged

_prepare_once = functools.cache(use_packaged)


def triton_runs_on(device: torch.device) -> bool:
    """Return True if kernels can be launched on `device`: a GPU, or a CPU where Triton interprets, as in tests.

    On a GPU Triton is prepared for machines that have no C compiler.

    Triton itself is not asked: to import it takes 0.3 s that an engine on a CPU need not spend.
    """
    if device.type == "cuda":
        _prepare_once()
        return True
    return device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"
