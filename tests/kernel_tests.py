"""The tests of the C kernels, which `make arm64`, `make emulated-x86` and `make sanitized` run with other kernels."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[1]
MODULES = (
    "cpu_kernels/test_cpu_kernels.py",
    "cpu_kernels/test_quantized.py",
    "model/layers/test_fused_layers.py",
    "model/gguf/test_gguf_blocks.py",
    "runner/test_decodes.py",
    "runner/test_sampler.py",
)
"""Paths in tests/engine."""
LIMITED = "a_lack_of_memory"
"""Part of the names of tests that limit the memory of their process, of which qemu and sanitizers need far more."""


def run(plugin: str, *arguments: str, more: tuple[str, ...] = (), environment: Mapping[str, str] | None = None) -> int:
    """Run the modules, and those in `more`, with a plugin of pytest; return its exit code."""
    tests = [str(CHECKOUT / "tests" / "engine" / name) for name in (*MODULES, *more)]
    command = [sys.executable, "-m", "pytest", "-p", plugin, "-p", "no:cacheprovider", *tests, *arguments]
    return subprocess.run(command, cwd=CHECKOUT, env=environment, check=False).returncode


def keep_those_that_call_kernels(items: list[pytest.Item]) -> None:
    """Keep the tests that call kernels, but for those that limit the memory of their process."""
    items[:] = [item for item in items if _calls_kernels(item) and LIMITED not in item.name]


def _calls_kernels(item: pytest.Item) -> bool:
    names = (*item.fixturenames, *item.function.__code__.co_names)
    return not {"kernels", "cpu_kernels"}.isdisjoint(names) or "c_kernel" in item.name
