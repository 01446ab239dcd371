"""Kernels compiled ahead of time for Hopper (sm_90), and what they take there, without a GPU."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tests.kernels.check import Build

HOPPER = GPUTarget("cuda", 90, 32)


@dataclass(frozen=True)
class Resources:
    """What one build takes."""

    registers: int
    """Of a thread."""
    spilled: int
    """Bytes of a thread's stack: what found no register."""
    shared: int
    """Bytes of a block."""
    sass: str
    """The machine code."""


def compiled(build: Build) -> Resources:
    """Compiles `build` for Hopper, of tensors aligned to 16 bytes; not to be called where Triton interprets."""
    types = {name: build.signature.get(name, "constexpr") for name in build.kernel.arg_names}
    missing = [name for name, kind in types.items() if kind == "constexpr" and name not in build.constants]
    if missing:
        raise TypeError(f"{build.name}: neither types nor constants of {', '.join(missing)}")
    aligned = {(place,): [["tt.divisibility", 16]] for place, kind in enumerate(types.values()) if kind[0] == "*"}
    source = ASTSource(fn=build.kernel, signature=types, constexprs=dict(build.constants), attrs=aligned)
    result = triton.compile(source, target=HOPPER, options={"num_warps": build.warps, "num_stages": build.stages})
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(result.asm["cubin"])
        usage = _run("cuobjdump", "--dump-resource-usage", file.name)
        sass = _run("cuobjdump", "--dump-sass", file.name)
    found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", usage)
    if found is None:
        raise RuntimeError(f"cuobjdump says nothing of registers: {usage}")
    registers, stack, _, local = map(int, found.groups())
    return Resources(registers, stack + local, int(result.metadata.shared), sass)


def _run(tool: str, *arguments: str) -> str:
    """A tool that comes with Triton."""
    path = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / tool
    return subprocess.run([path, *arguments], capture_output=True, text=True, check=True).stdout
