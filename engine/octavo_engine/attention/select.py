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
    elif name == "flashinfer":
        backend, reason = _flashinfer(device, task), "asked for"
    else:
        raise ConfigurationError(f"--attention-backend: {name!r} is not one of auto, triton, varlen, flashinfer, torch")
    log.info("attention backend: %s (%s, on %s)", backend.name, reason, device.type)
    return backend


def _on_cpu(task: AttentionTask | None) -> tuple[AttentionBackend, str]:
    kernels = cpu_kernels() if task is not None and computes(task) else None
    return (TorchAttention() if kernels is None else CPUAttention(kernels)), "the default"


def _on_gpu(device: torch.device, task: AttentionTask | None) -> tuple[AttentionBackend, str]:
    from octavo_engine.attention.agree import agreeing
    from octavo_engine.attention.measure import DeviceMeasure, choose

    ours = _triton(device)
    others = [] if task is None else _others(task)
    if task is None or not others:
        return ours, "the default"
    candidates = agreeing([ours, *others], task, device)
    if len(candidates) == 1:
        return ours, "the only one left"
    quickest = choose(candidates, DeviceMeasure(task, device))
    return next(backend for backend in candidates if backend.name == quickest), "the quickest"


def _others(task: AttentionTask) -> list[AttentionBackend]:
    """Other projects' backends that can compute `task` on a GPU here; the log says of each one why it cannot.

    Softcap and sinks are our kernels' alone.
    """
    from octavo_engine.attention import flashinfer, varlen

    obstacles = {
        "varlen": varlen.why_not() if task.plain else "it has neither softcap nor sinks",
        "flashinfer": flashinfer.why_not(task),
    }
    for name, obstacle in obstacles.items():
        if obstacle is not None:
            log.info("attention backend %s is no candidate: %s", name, obstacle)
    makers = {"varlen": varlen.VarlenAttention, "flashinfer": flashinfer.FlashInferAttention}
    return [makers[name]() for name, obstacle in obstacles.items() if obstacle is None]


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


def _flashinfer(device: torch.device, task: AttentionTask | None) -> AttentionBackend:
    from octavo_engine.attention.flashinfer import FlashInferAttention, why_not

    obstacle = "needs a GPU, and the device is cpu" if device.type != "cuda" else None
    if obstacle is None and task is not None:
        obstacle = why_not(task)
    if obstacle is not None:
        raise ConfigurationError(f"--attention-backend flashinfer: {obstacle}; use auto")
    return FlashInferAttention()
