"""Compiles the kernels ahead of time for GPUs other than Hopper, with the tiles that launches choose on each of them.

    python -m tests.kernels.devices           all of them, which takes half an hour
    python -m tests.kernels.devices A10 L4    some

prints a table, and what would not run. Nobody has run the kernels on these GPUs.
"""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace

import triton
from triton.backends.compiler import GPUTarget

from octavo_engine.kernels.gpu_limits import FP8_SINCE
from tests.kernels.check import Build, modules
from tests.kernels.hopper import compiled_for, registers_of


@dataclass(frozen=True)
class Device:
    """A kind of GPU."""

    name: str
    capability: tuple[int, int]
    shared_memory: int
    """Bytes that one program may have."""

    @property
    def target(self) -> GPUTarget:
        """What Triton compiles for."""
        major, minor = self.capability
        return GPUTarget("cuda", 10 * major + minor, 32)


DEVICES = (
    Device("A100", (8, 0), 163 << 10),
    Device("A10", (8, 6), 99 << 10),  # and RTX 3090
    Device("L4", (8, 9), 99 << 10),  # and L40S, RTX 4090
    Device("B200", (10, 0), 227 << 10),
    Device("RTX 5090", (12, 0), 99 << 10),  # and RTX PRO
)
_KEPT_IN_FP8 = {"key_cache", "value_cache", "cache", "gate_up", "down", "codes"}
"""What is kept in e4m3 on every GPU. Before Ada kernels take its bits, and products in 8 bits are not reached."""


@dataclass(frozen=True)
class Found:
    """What one build takes on one GPU."""

    registers: int
    spilled: int
    """Bytes of a thread."""
    shared: int
    """Bytes of a program."""


def builds_of(device: Device) -> dict[str, Build]:
    """The builds that `device` has, by name, with its tiles and its types."""
    found: dict[str, Build] = {}
    for module in modules():
        builds = getattr(module, "builds_for", lambda _, module=module: module.BUILDS)(device.shared_memory)
        more = getattr(module, "more_builds_for", lambda _: [])(device.shared_memory)
        for build in (*builds, *more):
            adapted = _adapted(build, device)
            if adapted is not None:
                found[build.name] = adapted
    return found


def _adapted(build: Build, device: Device) -> Build | None:
    """The build with the types that the device has; None if it has no such products."""
    signature = dict(build.signature)
    if device.capability < FP8_SINCE:
        of_fp8 = {name for name, kind in signature.items() if "fp8e4nv" in kind}
        if of_fp8 - _KEPT_IN_FP8:
            return None
        signature |= {name: signature[name].replace("fp8e4nv", "u8") for name in of_fp8}
    return replace(build, signature=signature)


def compiled_on(device: Device, build: Build) -> Found:
    """Compiles a build; a PTXASError or a CompilationError where the GPU has no such instructions."""
    result = compiled_for(build, device.target)
    return Found(*registers_of(result.asm["cubin"]), int(result.metadata.shared))


def compile_all(devices: Iterable[Device] = DEVICES, processes: int = 2) -> dict[Device, dict[str, Found | Exception]]:
    """All builds of each device, by name, or why one cannot be compiled."""
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        jobs = {
            device: {name: pool.submit(_compiled, device, name) for name in builds_of(device)} for device in devices
        }
        return {
            device: {name: job.exception() or job.result() for name, job in of_device.items()}
            for device, of_device in jobs.items()
        }


def _compiled(device: Device, name: str) -> Found:
    """Compile in another process, which finds the build itself: kernels cannot be sent to it."""
    return compiled_on(device, builds_of(device)[name])


def failures(device: Device, found: dict[str, Found | Exception]) -> list[str]:
    """What would not run on `device`, and why."""
    lines = []
    for name, build in sorted(found.items()):
        if isinstance(build, Exception):
            lines.append(f"{device.name}: {name} does not compile: {type(build).__name__}: {build}")
        elif build.shared > device.shared_memory:
            limit = device.shared_memory / 1024
            lines.append(f"{device.name}: {name} takes {build.shared / 1024:.1f} KiB of shared memory, not {limit:.0f}")
    return lines


def table(found: dict[Device, dict[str, Found | Exception]]) -> str:
    """Markdown: a line for each device."""
    lines = ["| GPU | builds | would not run | most shared memory, KiB | spilled, bytes a thread |"]
    lines.append("| --- | ---: | ---: | --- | --- |")
    for device, builds in found.items():
        built = {name: build for name, build in builds.items() if isinstance(build, Found)}
        most = max(built, key=lambda name: built[name].shared)
        spilled = ", ".join(f"{name} {build.spilled}" for name, build in sorted(built.items()) if build.spilled)
        lines.append(
            f"| {device.name} (sm_{device.target.arch}) | {len(builds)} | {len(failures(device, builds))} | "
            f"{built[most].shared / 1024:.1f} of {device.shared_memory / 1024:.0f} ({most}) | {spilled or 'none'} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    chosen = [device for device in DEVICES if device.name in sys.argv[1:] or not sys.argv[1:]]
    results = compile_all(chosen)
    sys.stdout.write(f"Triton {triton.__version__}\n\n{table(results)}\n")
    for device, builds in results.items():
        sys.stdout.writelines(line + "\n" for line in failures(device, builds))
