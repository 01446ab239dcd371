"""Which backend computes attention."""

from __future__ import annotations

import logging

import torch

from octavo_engine.attention.backend import AttentionBackend, AttentionTask
from octavo_engine.attention.cpu import CPUAttention, computes
from octavo_engine.attention.torch_reference import TorchAttention
from octavo_engine.errors import ConfigurationError
from octavo_engine.kernels.cpu.library import CPUKernels, cpu_kernels

log = logging.getLogger(__name__)


def select_backend(name: str, device: torch.device, task: AttentionTask | None = None) -> AttentionBackend:
    """The backend called `name`, or for `auto` the quickest on `device`; ConfigurationError if it cannot run there.

    Without a `task` no backend is taken that computes only some.
    """
    chosen = name if name != "auto" else "triton" if device.type == "cuda" else "torch"
    reason = "the default on" if name == "auto" else "asked for, on"
    if chosen == "torch":
        kernels = _cpu_kernels(task) if name == "auto" and device.type == "cpu" else None
        backend: AttentionBackend = TorchAttention() if kernels is None else CPUAttention(kernels)
    elif chosen == "triton":
        backend = _triton(device)
    else:
        raise ConfigurationError(f"--attention-backend: {name!r} is not one of auto, triton, torch")
    log.info("attention backend: %s (%s %s)", backend.name, reason, device.type)
    return backend


def _cpu_kernels(task: AttentionTask | None) -> CPUKernels | None:
    return cpu_kernels() if task is not None and computes(task) else None


def _triton(device: torch.device) -> AttentionBackend:
    from octavo_engine.attention.triton import TritonAttention, interpreted

    if device.type != "cuda" and not interpreted():
        raise ConfigurationError(
            "--attention-backend triton needs a GPU, and the device is cpu; use auto or torch (or TRITON_INTERPRET=1, "
            "which runs the kernels in Triton's interpreter, for tests)"
        )
    return TritonAttention()
