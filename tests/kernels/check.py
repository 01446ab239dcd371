"""The record of a check of a Triton kernel: it compares results with a reference, and names the builds to inspect.

Each kernel has a module `<kernel>_checks.py` with CHECKS and BUILDS. The modules import only what the device machine
has (torch, triton, numpy), so that the same checks run under Triton's interpreter here and on a real GPU there.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch


class NotCheckedError(Exception):
    """A requirement of the check is missing here: it has neither passed nor failed."""


@dataclass(frozen=True)
class Check:
    """One comparison with a reference, on fresh random data with poisoned outputs; AssertionError if it fails."""

    name: str
    run: Callable[[torch.device], str | None]
    """May say what it found, for the table of `make gpu-check`."""
    large: bool = False
    """Takes the interpreter too long for every run of the tests: on hardware only."""
    alone: bool = False
    """Measures the device's memory, which other processes change: no other check runs meanwhile."""


@dataclass(frozen=True)
class Build:
    """A kernel with one set of compile-time constants as it is launched on Hopper, and what it may take there."""

    name: str
    kernel: Any
    signature: Mapping[str, str]
    """Triton's type of each argument that is no constant: `*bf16`, `i32`, `fp32` and so on.

    With `:16` behind it what a launch finds to be a multiple of 16 and specialises on: addresses of tensors, strides.
    """
    constants: Mapping[str, Any]
    warps: int = 4
    stages: int = 3
    max_registers: int = 255
    """A thread's; more than 255 there are not."""
    max_shared: int = 0
    """Bytes of a block."""
    sass: tuple[str, ...] = field(default=())
    """Instructions that its code must have, as `HGMMA` where products run on the tensor cores of a warp group."""
    max_loop: Mapping[str, int] = field(default_factory=dict)
    """Most instructions of a kind (`LDG`, `MUFU`, `IMAD` ...) in one turn of the inner loop; `all`: of all kinds.

    `all` must be there if there is a loop.
    """


def modules() -> list[Any]:
    """All modules with checks, by name."""
    names = sorted(path.stem for path in Path(__file__).parent.glob("*_checks.py"))
    return [importlib.import_module(f"tests.kernels.{name}") for name in names]
