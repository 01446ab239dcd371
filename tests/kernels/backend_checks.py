"""Checks of other projects' attention backends, which `auto` may measure once they have passed here on a GPU.

All are large, as they need a GPU. A fault of the device ends only the check that caused it, since each runs in a
process of its own.
"""

from __future__ import annotations

import logging
from functools import partial
from importlib import import_module

import torch

from octavo_engine.attention.autotune import DeviceMeasure, choose
from octavo_engine.attention.backend import AttentionBackend, AttentionTask, KVGroupSpec
from octavo_engine.attention.cross_check import cross_checked
from octavo_engine.attention.registry import BACKENDS
from tests.kernels.check import Build, Check, NotCheckedError

_GROUPS = (KVGroupSpec("full", (0, 1), 8, 128), KVGroupSpec("sliding", (2, 3), 8, 128, window=512))


def _computes_what_ours_does(name: str, num_groups: int, device: torch.device) -> str:
    """Its results, decodes as CUDA graphs among them, and which of the two is the quicker."""
    entry = BACKENDS[name]
    module = import_module(f"octavo_engine.attention.{entry.module}")
    task = AttentionTask(_GROUPS[:num_groups], 32, torch.bfloat16, torch.bfloat16, 16)
    if device.type != "cuda" or (obstacle := module.why_not(device, task)) is not None:
        raise NotCheckedError("needs a GPU" if device.type != "cuda" else obstacle)
    logging.basicConfig(level=logging.INFO)  # says how far results are apart, and each trial's times
    ours, other = (_made(each) for each in ("triton", name))
    passed = cross_checked([ours, other], task, device)
    assert len(passed) == 2, f"the results of {name} are others than ours, or it failed: the log says which"
    return f"the quickest is {choose(passed, DeviceMeasure(task, device))}"


def _made(name: str) -> AttentionBackend:
    module = import_module(f"octavo_engine.attention.{BACKENDS[name].module}")
    backend: AttentionBackend = getattr(module, BACKENDS[name].name)()
    return backend


CHECKS = [
    Check(f"{name}_{count}_groups", partial(_computes_what_ours_does, name, count), large=True)
    for name, entry in BACKENDS.items()
    if entry.third_party
    for count in (1, 2)
]
BUILDS: list[Build] = []
