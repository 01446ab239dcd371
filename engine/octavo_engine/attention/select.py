"""Selects the attention backend: the requested one, or the quickest one that can be used."""

from __future__ import annotations

import logging
from importlib import import_module
from types import ModuleType

import torch

from octavo_engine.attention.backend import AttentionBackend, AttentionTask
from octavo_engine.attention.cpu import CPUAttention, computes
from octavo_engine.attention.registry import BACKENDS
from octavo_engine.attention.torch_reference import TorchAttention
from octavo_engine.errors import ConfigurationError
from octavo_engine.kernels.cpu.library import cpu_kernels
from octavo_engine.kernels.triton_support import triton_runs_on

log = logging.getLogger(__name__)


def select_backend(
    name: str, device: torch.device, task: AttentionTask | None = None, *, measure: bool = True
) -> AttentionBackend:
    """Return the backend called `name`, or for `auto` the quickest; ConfigurationError if `device` cannot run it.

    Without a `task`, `auto` returns a backend that computes every task. Without a `task` or without `measure`, `auto`
    tries nothing on a GPU and returns our own Triton kernels.
    """
    if task is not None and (special := _only_by_torch(task, device)) is not None:
        backend, reason = _create_torch(name, task, special), f"it alone computes {special}"
    elif name != "auto":
        backend, reason = _create_by_name(name, device, task), "requested"
    elif device.type == "cuda":
        backend, reason = _on_gpu(device, task if measure else None)
    else:
        backend, reason = _on_cpu(task)
    log.info("attention backend: %s (%s, on %s)", backend.name, reason, device.type)
    return backend


def _create_by_name(name: str, device: torch.device, task: AttentionTask | None) -> AttentionBackend:
    if name not in BACKENDS:
        raise ConfigurationError(f"--attention-backend: {name!r} is not one of auto, {', '.join(BACKENDS)}")
    obstacle = _module(name).why_not(device, task)
    if obstacle is not None:
        raise ConfigurationError(f"--attention-backend {name}: {obstacle}; use auto")
    return _create(name)


def _only_by_torch(task: AttentionTask, device: torch.device) -> str | None:
    """Return the property of a task that only the backend `torch` computes on `device`; None if there is none."""
    if any(group.rows for group in task.groups):
        return "compressed attention, or attention to chosen tokens"
    if not any(group.layers for group in task.groups):
        return "attention in both directions"
    if any(group.chunked for group in task.groups):
        return "chunked windows"
    if task.latent and not (triton_runs_on(device) and _module("triton").computes(task)):
        return "latent attention" if not triton_runs_on(device) else "latents of these sizes"
    return None


def _create_torch(name: str, task: AttentionTask, special: str) -> AttentionBackend:
    if name not in ("auto", "torch"):
        raise ConfigurationError(f"--attention-backend {name}: it does not compute {special}; use auto")
    return TorchAttention(frozenset(index for index, group in enumerate(task.groups) if group.chunked))


def _on_cpu(task: AttentionTask | None) -> tuple[AttentionBackend, str]:
    kernels = cpu_kernels() if task is not None and computes(task) else None
    return (TorchAttention() if kernels is None else CPUAttention(kernels)), "the default"


def _on_gpu(device: torch.device, task: AttentionTask | None) -> tuple[AttentionBackend, str]:
    from octavo_engine.attention.autotune import DeviceMeasure, choose
    from octavo_engine.attention.cross_check import cross_checked

    ours = _create_by_name("triton", device, task)
    others = [] if task is None else _third_party(device, task)
    if task is None or not others:
        return ours, "the default"
    candidates = cross_checked([ours, *others], task, device)
    if len(candidates) == 1:
        return ours, "the only one left"
    quickest = choose(candidates, DeviceMeasure(task, device))
    return next(backend for backend in candidates if backend.name == quickest), "the quickest"


def _third_party(device: torch.device, task: AttentionTask) -> list[AttentionBackend]:
    """Return the other projects' backends that can compute `task`; the log says why each of the rest cannot."""
    obstacles = {name: _obstacle(name, device, task) for name, entry in BACKENDS.items() if entry.third_party}
    for name, obstacle in obstacles.items():
        if obstacle is not None:
            log.info("attention backend %s is not used: %s", name, obstacle)
    return [_create(name) for name, obstacle in obstacles.items() if obstacle is None]


def _obstacle(name: str, device: torch.device, task: AttentionTask) -> str | None:
    obstacle: str | None = _module(name).why_not(device, task)
    if obstacle is None and not BACKENDS[name].verified_on_gpu:
        return f"it has not run on a GPU yet; --attention-backend {name} selects it nevertheless"
    return obstacle


def _module(name: str) -> ModuleType:
    return import_module(f"octavo_engine.attention.{BACKENDS[name].module}")


def _create(name: str) -> AttentionBackend:
    backend: AttentionBackend = getattr(_module(name), BACKENDS[name].name)()
    return backend
