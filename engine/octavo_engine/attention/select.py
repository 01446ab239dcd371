"""Which backend computes attention: what is asked for, or the quickest there is."""

from __future__ import annotations

import logging

import torch

from octavo_engine.attention.backend import AttentionBackend, AttentionTask
from octavo_engine.attention.cpu import CPUAttention, computes
from octavo_engine.attention.torch_reference import TorchAttention
from octavo_engine.errors import ConfigurationError
from octavo_engine.kernels.cpu.library import cpu_kernels

log = logging.getLogger(__name__)

_OTHERS = ("varlen", "flashinfer")
"""Other projects' backends, for GPUs."""


def select_backend(
    name: str, device: torch.device, task: AttentionTask | None = None, *, measure: bool = True
) -> AttentionBackend:
    """The backend called `name`, or for `auto` the quickest on `device`; ConfigurationError if it cannot run there.

    Without a `task` no backend is taken that computes only some. Without it, or unless it is to `measure`, nothing is
    tried on a GPU and our own kernels are taken.
    """
    if name == "auto":
        backend, reason = _on_gpu(device, task if measure else None) if device.type == "cuda" else _on_cpu(task)
    elif name == "torch":
        backend, reason = TorchAttention(), "asked for"
    elif name == "triton":
        backend, reason = _triton(device), "asked for"
    elif name in _OTHERS:
        backend, reason = _other(name, device, task), "asked for"
    else:
        raise ConfigurationError(f"--attention-backend: {name!r} is not one of auto, triton, varlen, flashinfer, torch")
    log.info("attention backend: %s (%s, on %s)", backend.name, reason, device.type)
    return backend


def _on_cpu(task: AttentionTask | None) -> tuple[AttentionBackend, str]:
    kernels = cpu_kernels() if task is not None and computes(task) else None
    return (TorchAttention() if kernels is None else CPUAttention(kernels)), "the default"


def _on_gpu(device: torch.device, task: AttentionTask | None) -> tuple[AttentionBackend, str]:
    from octavo_engine.attention.autotune import DeviceMeasure, choose
    from octavo_engine.attention.cross_check import cross_checked

    ours = _triton(device)
    others = [] if task is None else _others(task)
    if task is None or not others:
        return ours, "the default"
    candidates = cross_checked([ours, *others], task, device)
    if len(candidates) == 1:
        return ours, "the only one left"
    quickest = choose(candidates, DeviceMeasure(task, device))
    return next(backend for backend in candidates if backend.name == quickest), "the quickest"


def _others(task: AttentionTask) -> list[AttentionBackend]:
    """Other projects' backends that can compute `task` on a GPU here; the log says of each one why it cannot."""
    obstacles = {name: _obstacle(name, task) for name in _OTHERS}
    for name, obstacle in obstacles.items():
        if obstacle is not None:
            log.info("attention backend %s is no candidate: %s", name, obstacle)
    return [_made(name) for name, obstacle in obstacles.items() if obstacle is None]


def _other(name: str, device: torch.device, task: AttentionTask | None) -> AttentionBackend:
    obstacle = "needs a GPU, and the device is cpu" if device.type != "cuda" else _obstacle(name, task)
    if obstacle is not None:
        raise ConfigurationError(f"--attention-backend {name}: {obstacle}; use auto")
    return _made(name)


def _obstacle(name: str, task: AttentionTask | None) -> str | None:
    """What stands in the way of another project's backend on a GPU here, or for `task` if it is given."""
    from octavo_engine.attention import flashinfer, varlen

    if name == "flashinfer":
        return None if task is None else flashinfer.why_not(task)
    if task is not None and not task.plain:
        return "it has neither softcap nor sinks"
    return varlen.why_not()


def _made(name: str) -> AttentionBackend:
    from octavo_engine.attention import flashinfer, varlen

    return flashinfer.FlashInferAttention() if name == "flashinfer" else varlen.VarlenAttention()


def _triton(device: torch.device) -> AttentionBackend:
    from octavo_engine.attention.triton import TritonAttention, interpreted

    if device.type != "cuda" and not interpreted():
        raise ConfigurationError(
            "--attention-backend triton needs a GPU, and the device is cpu; use auto or torch (or TRITON_INTERPRET=1, "
            "which runs the kernels in Triton's interpreter, for tests)"
        )
    return TritonAttention()
