"""A plugin for pytest: the C kernels of the tests are those for arm64, and are called in a process under qemu.

It sees the tests' memory at the same addresses (shared_malloc.c), so that nothing is copied.
"""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from octavo_engine.kernels.cpu import build, features, library
from tests import kernel_tests
from tests.arm64 import COMPILER, EMULATOR, FOLDER

CPUS = {"neon": "cortex-a72", "neon_dotprod": "neoverse-n1", "neon_bf16": "max"}
"""The CPU that qemu emulates for each level: one without the instructions of the levels above."""
ROOT = "/usr/aarch64-linux-gnu"
"""Where Debian has the C library and OpenMP for arm64."""


class RemoteFunction:
    """A function of the kernels, with ctypes' attributes `argtypes` and `restype`."""

    def __init__(self, kernels: RemoteKernels, name: str) -> None:
        self.kernels, self.name = kernels, name
        self.argtypes: Sequence[object] = ()
        self.restype: object = None  # whatever it is, a number is returned

    def __call__(self, *arguments: object) -> int:
        values: list[float | None] = []
        convert = ctypes.CFUNCTYPE(None, *self.argtypes)(lambda *converted: values.extend(converted))
        convert(*arguments)
        return self.kernels.call(self.name, values)


class RemoteKernels:
    """The kernels compiled to `path`, in place of ctypes.CDLL."""

    def __init__(self, path: str) -> None:
        self._name = path
        memory = ctypes.CDLL(None).shared_memory()
        cpu = CPUS[Path(path).name.split("-")[1]]
        command = (EMULATOR, "-L", ROOT, "-cpu", cpu, str(FOLDER / "call_kernels"), path, str(memory))
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=(memory,))

    def __getattr__(self, name: str) -> RemoteFunction:
        function = RemoteFunction(self, name)
        setattr(self, name, function)
        return function

    def call(self, name: str, values: Sequence[float | None]) -> int:
        numbers = [value or 0 for value in values if not isinstance(value, float)]
        fraction = next((value for value in values if isinstance(value, float)), 0.0)
        numbers += [0] * (20 - len(numbers))
        self.process.stdin.write(struct.pack("32s20qd", name.encode(), *numbers, fraction))
        self.process.stdin.flush()
        answer = self.process.stdout.read(8)
        if len(answer) < 8:
            raise RuntimeError(f"{name}: the process under qemu ended with {self.process.wait()}")
        return struct.unpack("q", answer)[0]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    kernel_tests.keep_those_that_call_kernels(items)


os.environ.pop("LD_PRELOAD")  # compilers and emulators have a malloc of their own
build.LEVELS = build.ARCHITECTURES["aarch64"]
build._COMPILER = COMPILER
FLAGS = frozenset(flag for needed, _ in build.LEVELS.values() for flag in needed)
features.cpu_flags = build.cpu_flags = lambda: FLAGS
library.ctypes = SimpleNamespace(**{**vars(ctypes), "CDLL": RemoteKernels})
