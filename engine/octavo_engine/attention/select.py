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


def select_backend(
    name: str, device: torch.device, task: AttentionTask | None = None, *, measure: bool = True
) -> AttentionBackend:
    """The backend called `name`, or for `auto` the quickest on `device`; ConfigurationError if it cannot run there.

    Without a `task` no backend is taken that computes only some. Without it, or unless it is to `measure`, nothing is
    tried on a GPU and our own kernels are taken.
    """
    if name == "varlen" and task is not None and not task.plain:
        raise ConfigurationError("--attention-backend varlen: it has neither softcap nor sinks; use auto")
    if name == "auto":
        backend, reason = _on_gpu(device, task if measure else None) if device.type == "cuda" else _on_cpu(task)
    elif name == "torch":
        backend, reason = TorchAttention(), "asked for"
    elif name == "triton":
        backend, reason = _triton(device), "asked for"
    elif name == "varlen":
        backend, reason = _varlen(device), "asked for"
    else:
        raise ConfigurationError(f"--attention-backend: {name!r} is not one of auto, triton, varlen, torch")
    log.info("attention backend: %s (%s, on %s)", backend.name, reason, device.type)
    return backend


def _on_cpu(task: AttentionTask | None) -> tuple[AttentionBackend, str]:
    kernels = cpu_kernels() if task is not None and computes(task) else None
    return (TorchAttention() if kernels is None else CPUAttention(kernels)), "the default"


def _on_gpu(device: torch.device, task: AttentionTask | None) -> tuple[AttentionBackend, str]:
    from octavo_engine.attention.measure import DeviceMeasure, choose

    candidates = gpu_candidates(device, task is None or task.plain)
    if len(candidates) == 1 or task is None:
        return candidates[0], "the default"
    quickest = choose(candidates, DeviceMeasure(task, device))
    return next(backend for backend in candidates if backend.name == quickest), "the quickest"


def gpu_candidates(device: torch.device, plain: bool = True) -> list[AttentionBackend]:
    """The backends that can run on a GPU here, our own first; others say in the log why they cannot.

    `plain`: as AttentionTask's; softcap and sinks are our kernels' alone.
    """
    from octavo_engine.attention.varlen import why_not

    candidates: list[AttentionBackend] = [_triton(device)]
    if (obstacle := why_not() if plain else "it has neither softcap nor sinks") is None:
        candidates.append(_varlen(device))
    else:
        log.info("attention backend varlen is no candidate: %s", obstacle)
    return candidates


def _triton(device: torch.device) -> AttentionBackend:
    from octavo_engine.attention.triton import TritonAttention, interpreted

    if device.type != "cuda" and not interpreted():
        raise ConfigurationError(
            "--attention-backend triton needs a GPU, and the device is cpu; use auto or torch (or TRITON_INTERPRET=1, "
            "which runs the kernels in Triton's interpreter, for tests)"
        )
    return TritonAttention()


def _varlen(device: torch.device) -> AttentionBackend:
    from octavo_engine.attention.varlen import VarlenAttention, why_not

    obstacle = "needs a GPU, and the device is cpu" if device.type != "cuda" else why_not()
    if obstacle is not None:
        raise ConfigurationError(f"--attention-backend varlen: {obstacle}; use auto")
    return VarlenAttention()
