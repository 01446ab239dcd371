"""Which backend computes attention."""

from __future__ import annotations

import logging

import torch

from octavo_engine.attention.backend import AttentionBackend
from octavo_engine.attention.torch_reference import TorchAttention
from octavo_engine.errors import ConfigurationError

log = logging.getLogger(__name__)


def select_backend(name: str, device: torch.device) -> AttentionBackend:
    """The backend called `name`, or for `auto` the quickest on `device`; ConfigurationError if it cannot run there."""
    chosen = name if name != "auto" else "triton" if device.type == "cuda" else "torch"
    reason = "the default on" if name == "auto" else "asked for, on"
    if chosen == "torch":
        backend: AttentionBackend = TorchAttention()
    elif chosen == "triton":
        backend = _triton(device)
    else:
        raise ConfigurationError(f"--attention-backend: {name!r} is not one of auto, triton, torch")
    log.info("attention backend: %s (%s %s)", backend.name, reason, device.type)
    return backend


def _triton(device: torch.device) -> AttentionBackend:
    from octavo_engine.attention.triton import TritonAttention, interpreted

    if device.type != "cuda" and not interpreted():
        raise ConfigurationError(
            "--attention-backend triton needs a GPU, and the device is cpu; use auto or torch (or TRITON_INTERPRET=1, "
            "which runs the kernels in Triton's interpreter, for tests)"
        )
    return TritonAttention()
