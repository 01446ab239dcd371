"""A plugin for pytest: tests of the C kernels run every level of x86, those that this CPU lacks in plain C.

A copy of the sources is compiled for AVX2. Its immintrin.h and amx.h are those of this folder, and macros tell it that
AVX-512 is there.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

from octavo_engine.kernels.cpu import build, features
from tests import kernel_tests

HERE = Path(__file__).parent
FOLDER = HERE.parents[1] / ".cache" / "emulated_x86"
MACROS = {
    "-march=x86-64-v4": ("-D__AVX512F__",),
    "-mavx512bf16": ("-D__AVX512BF16__",),
    "-mavx512vnni": ("-D__AVX512VNNI__",),
    "-mavxvnni": ("-D__AVXVNNI__",),
    "-mamx-bf16": ("-D__AMX_BF16__",),
}
"""What a compiler defines for each of its options."""
IN_REGISTER = '#define IN_REGISTER(vector) __asm__("" : "+v"(vector))'
"""Needs a register of the vector's size."""


def compile_to(folder: Path, level: str) -> Path:
    """Compile the kernels of `level` for this CPU, with the instructions that it may lack in plain C."""
    target = _target(level)
    sources = target.with_suffix("")
    shutil.copytree(
        build.HERE, sources, ignore=shutil.ignore_patterns("*.py", "built", "__pycache__"), dirs_exist_ok=True
    )
    shutil.copy(HERE / "amx.h", sources)
    vector = sources / "vector.h"
    text = vector.read_text()
    assert IN_REGISTER in text
    vector.write_text(text.replace(IN_REGISTER, "#define IN_REGISTER(vector)"))
    macros = [macro for option in build.LEVELS[level][1] for macro in MACROS.get(option, ())]
    options = [*build._OPTIONS, "-O1", "-march=x86-64-v3", "-Wno-psabi", f"-I{HERE}", *macros]
    command = [build._COMPILER, *options, "-o", str(target), *map(str, sorted(sources.glob("*.c"))), "-lm"]
    subprocess.run(command, check=True)
    return target


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    kernel_tests.keep_those_that_call_kernels(items)


def _target(level: str) -> Path:
    """Return the compiled file's path, which changes when the kernels or a file of this folder change."""
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in sorted(HERE.glob("*.[hp]*"))))
    return FOLDER / digest.hexdigest()[:16] / build._file_name(level)


def _kept(level: str) -> Path:
    target = _target(level)
    return target if target.exists() else compile_to(FOLDER, level)


FLAGS = features.cpu_flags() | {flag for needed, _ in build.LEVELS.values() for flag in needed}
features.cpu_flags = build.cpu_flags = lambda: FLAGS
build.compile_to = compile_to
build.library_for = _kept
