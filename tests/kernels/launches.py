"""Finds which variants of a kernel Triton would compile for given launches, without compiling or running any."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature


@dataclass(frozen=True)
class Launch:
    """One way of compiling one kernel for Hopper."""

    kernel: str
    constants: tuple[str, ...]
    """Compile-time constants, arguments that are None, and options: another kernel on purpose."""
    found: tuple[tuple[str, str], ...]
    """What Triton finds of each other argument: its type, whether it is 1, whether 16 divides it."""


def watch_launches(monkeypatch: pytest.MonkeyPatch, watcher: Callable[[Launch], None]) -> None:
    """Report every launch to `watcher` and do nothing else: what the launch would have written stays as it is."""
    backend = make_backend(GPUTarget("cuda", 90, 32))

    @cache
    def binder(kernel: Any) -> Any:
        return create_function_from_signature(kernel.signature, kernel.params, backend)

    def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        _, specialization, options = binder(kernel)(*args, **kwargs)
        parts = list(zip(kernel.params, map(str, specialization), strict=True))
        constants = tuple(part for parameter, part in parts if parameter.is_constexpr or "None" in part)
        rest = tuple((p.name, part) for p, part in parts if not p.is_constexpr and "None" not in part)
        watcher(Launch(kernel.__name__, (*constants, str(sorted(options.items()))), rest))

    monkeypatch.setattr(JITFunction, "run", run)
