"""Compiles kernels ahead of time for Hopper (sm_90), without a GPU, and reads their resources.

    python -m tests.kernels.hopper

prints a table of all builds; `python -m bench.gpu.roofline --builds` writes it into bench/results/ROOFLINE.md.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib
import multiprocessing
import os
import re
import subprocess
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tests.kernels.check import Build, modules
from tests.kernels.sass import inner_loop

HOPPER = GPUTarget("cuda", 90, 32)


@dataclass(frozen=True)
class Resources:
    """The resources of one build."""

    registers: int
    """Of a thread."""
    spilled: int
    """Bytes of a thread's stack: what found no register."""
    shared: int
    """Bytes of a block."""
    sass: str
    """The machine code."""
    loop: Counter[str]
    """Instructions of one turn of the inner loop, by kind; empty if there is no loop."""


def compiled(build: Build) -> Resources:
    """Compiles `build` for Hopper; not to be called where Triton interprets."""
    result = compiled_for(build, HOPPER)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(result.asm["cubin"])
        sass = _listing(result.asm["cubin"], file.name)
    registers, spilled = registers_of(result.asm["cubin"])
    return Resources(registers, spilled, int(result.metadata.shared), sass, inner_loop(sass))


def compiled_for(build: Build, target: GPUTarget) -> Any:
    """Compiles `build` for a GPU of any kind; returns what Triton compiled."""
    types = {name: build.signature.get(name, "constexpr") for name in build.kernel.arg_names}
    missing = [name for name, kind in types.items() if kind == "constexpr" and name not in build.constants]
    if missing:
        raise TypeError(f"{build.name}: neither types nor constants of {', '.join(missing)}")
    # What Triton finds at a launch, where it may look: tensors begin at multiples of 16 bytes, strides are multiples of
    # 16 elements.
    aligned = [
        place
        for place, (name, kind) in enumerate(types.items())
        if (kind[0] == "*" or name.endswith("stride") or kind.endswith(":16"))
        and not build.kernel.params[place].do_not_specialize
    ]
    attributes = {(place,): [["tt.divisibility", 16]] for place in aligned}
    types = {name: kind.removesuffix(":16") for name, kind in types.items()}
    source = ASTSource(fn=build.kernel, signature=types, constexprs=dict(build.constants), attrs=attributes)
    return triton.compile(source, target=target, options={"num_warps": build.warps, "num_stages": build.stages})


def registers_of(cubin: bytes) -> tuple[int, int]:
    """A thread's registers, and the bytes of what found none."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(cubin)
        usage = _run("cuobjdump", "--dump-resource-usage", file.name)
    found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", usage)
    if found is None:
        raise RuntimeError(f"cuobjdump says nothing of registers: {usage}")
    registers, stack, _, local = map(int, found.groups())
    return registers, stack + local


def _listing(cubin: bytes, file: str) -> str:
    """The machine code in words, which takes half a second; kept where Triton keeps what it compiled."""
    key = hashlib.sha256(triton.__version__.encode() + cubin).hexdigest()
    kept = Path(triton.knobs.cache.dir) / f"{key}.sass.gz"
    if not kept.exists():
        made = kept.with_suffix(f".{os.getpid()}")
        made.write_bytes(gzip.compress(_run("cuobjdump", "--dump-sass", file).encode(), 1))
        made.replace(kept)
    return gzip.decompress(kept.read_bytes()).decode()


def compile_all(processes: int = 2) -> dict[str, Resources | Exception]:
    """All builds of all modules, by name, or why one cannot be compiled."""
    jobs = {build.name: (module.__name__, place) for module in modules() for place, build in enumerate(module.BUILDS)}
    if len(jobs) != sum(len(module.BUILDS) for module in modules()):
        raise ValueError("two builds have one name")
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        results = [pool.submit(_compiled, *job) for job in jobs.values()]
        return {name: result.exception() or result.result() for name, result in zip(jobs, results, strict=True)}


def _compiled(module: str, place: int) -> Resources:
    """Compile in another process, which finds the build itself: kernels cannot be sent to it."""
    return compiled(importlib.import_module(module).BUILDS[place])


def _run(tool: str, *arguments: str) -> str:
    """A tool that comes with Triton."""
    path = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / tool
    return subprocess.run([path, *arguments], capture_output=True, text=True, check=True).stdout


_SHOWN = ("HGMMA", "QGMMA", "HMMA", "LDG", "LDGSTS", "UTMALDG", "LDS", "LDSM", "STS", "MUFU", "IMAD", "BAR")


def table(found: dict[str, Resources | Exception]) -> str:
    """Markdown: what each build takes, and what its inner loop consists of."""
    lines = ["| kernel | registers | spilled | shared, KiB | inner loop |", "| --- | ---: | ---: | ---: | --- |"]
    for name, build in sorted(found.items()):
        if isinstance(build, Exception):
            lines.append(f"| {name} | – | – | – | {type(build).__name__} |")
            continue
        kinds = [f"{build.loop[kind]} {kind}" for kind in _SHOWN if build.loop[kind]]
        loop = f"{build.loop.total()}: {', '.join(kinds)}" if build.loop else "none"
        lines.append(f"| {name} | {build.registers} | {build.spilled} | {build.shared / 1024:.1f} | {loop} |")
    return "\n".join(lines)


def section(found: dict[str, Resources | Exception]) -> str:
    """The table, and which Triton compiled."""
    return f"Triton {triton.__version__}, sm_90:\n\n{table(found)}"


if __name__ == "__main__":
    print(section(compile_all()))
