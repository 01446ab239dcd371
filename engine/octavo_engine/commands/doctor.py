"""`octavo-engine doctor`: checks of this machine before a server is started, with advice for what is missing."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import resource
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from octavo_engine import __version__
from octavo_engine.errors import ConfigurationError
from octavo_engine.process_setup.listen import listening_socket
from octavo_engine.sizes import format_size

_GIB = 1 << 30
_LITTLE_MEMORY = 2 * _GIB
_LITTLE_DISK = 20 * _GIB
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108
_LITTLE_SHARED_MEMORY = 64 << 20
"""Bytes of /dev/shm that are more than enough for the ranks of one machine."""
_FEW_FILES = 8192
"""Open files below which there is a warning: twice the default of --max-connections."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one check. `advice` says what to do, and is empty if the state is ok."""

    name: str
    state: Literal["ok", "warning", "problem"]
    text: str
    advice: str = ""


def results(port: int) -> Iterator[Result]:
    """Run all checks, in the order in which a start would meet the problems. Nothing is downloaded or changed."""
    yield Result("octavo", "ok", f"{__version__}, Python {platform.python_version()}")
    if importlib.util.find_spec("torch") is None:
        install = "in a checkout of Octavo: make setup, or pip install '.[engine]'"
        yield Result("torch", "problem", "is not installed", install)
        return  # the other checks need packages of that extra
    checks: list[Callable[[], Iterator[Result]]] = [_torch, _gpus, _cpu, _memory, _shared_memory, _disk, _files]
    for check in checks:
        yield from check()
    yield _port(port)


def run(port: int, as_json: bool) -> int:
    """Print the results of all checks; return 0 if a server can start, and 2 if a problem prevents it."""
    found = list(results(port))
    if as_json:
        sys.stdout.write(json.dumps([asdict(each) for each in found], indent=2) + "\n")
    else:
        width = max(len(each.name) for each in found)
        for each in found:
            sys.stdout.write(f"{each.state:8} {each.name:{width}}  {each.text}\n")
            if each.advice:
                sys.stdout.write(f"{'':8} {'':{width}}  -> {each.advice}\n")
    return ConfigurationError.exit_code if any(each.state == "problem" for each in found) else 0


def _torch() -> Iterator[Result]:
    import torch

    yield Result("torch", "ok", f"{torch.__version__}, CUDA {torch.version.cuda or 'none'}")


def _gpus() -> Iterator[Result]:
    import torch

    devices = [Path("/dev") / name for name in ("nvidia0", "nvidiactl")]
    if not torch.cuda.is_available():
        there = any(device.exists() for device in devices)
        advice = "the driver is older than torch's CUDA, or the container lacks its libraries: see nvidia-smi"
        state: Literal["ok", "problem"] = "problem" if there else "ok"
        yield Result("GPU", state, "torch finds none" + ("" if there else "; models run on the CPU"), advice * there)
        return
    for index in range(torch.cuda.device_count()):
        yield _gpu(index)


def _gpu(index: int) -> Result:
    import torch

    from octavo_engine.kernels.gpu_limits import OLDEST, capability, converts_fp8

    device = torch.device("cuda", index)
    major, minor = capability(device) or (0, 0)
    free, total = torch.cuda.mem_get_info(device)
    memory = f"{format_size(free)} free of {format_size(total)}"
    text = f"{torch.cuda.get_device_name(device)}, capability {major}.{minor}, {memory}"
    if (major, minor) < OLDEST:
        advice = "the kernels need capability 8.0 (Ampere) or later: use such a GPU, or --device cpu"
        return Result(f"GPU {index}", "problem", text, advice)
    if not converts_fp8(device):
        text += ", does not multiply in FP8"
    if free < total * 0.9:
        advice = "another process holds memory (see nvidia-smi): end it, or lower --gpu-memory-utilization"
        return Result(f"GPU {index}", "warning", text, advice)
    return Result(f"GPU {index}", "ok", text)


def _cpu() -> Iterator[Result]:
    from octavo_engine.kernels.cpu.build import BuildError, OldCPUError, built_library
    from octavo_engine.runner.cores import usable_cores

    cores = f"{usable_cores()} cores"
    try:
        library = built_library()
    except BuildError as error:
        advice = "install gcc and libc6-dev; until then PyTorch computes, at a fraction of the speed"
        if isinstance(error, OldCPUError):
            advice = "PyTorch computes here, at a fraction of the speed of a CPU with AVX2 or NEON"
        yield Result("CPU", "warning", f"{cores}, Octavo's kernels cannot be used: {error}", advice)
        return
    yield Result("CPU", "ok", f"{cores}, kernels for {library.name.split('-')[1]}")


def _memory() -> Iterator[Result]:
    from octavo_engine.runner.memory.device_memory import host_memory

    memory = host_memory()
    text = f"{format_size(memory.free)} free of {format_size(memory.total)} ({memory.name})"
    little = memory.free < _LITTLE_MEMORY
    advice = "even a small model on the CPU needs a few GiB: end other programs, or raise the container's limit"
    yield Result("memory", "warning" if little else "ok", text, advice * little)


def _shared_memory() -> Iterator[Result]:
    free = shutil.disk_usage(_SHARED_MEMORY).free if _SHARED_MEMORY.is_dir() else 0
    little = free < _LITTLE_SHARED_MEMORY
    advice = "--tensor-parallel-size above 1 needs more: docker run --shm-size 1g, or cache.sharedMemorySize"
    yield Result(str(_SHARED_MEMORY), "warning" if little else "ok", f"{format_size(free)} free", advice * little)


def _disk() -> Iterator[Result]:
    from huggingface_hub import constants

    folder = Path(constants.HF_HUB_CACHE).expanduser()
    there = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(there).free
    if not os.access(there, os.W_OK):
        advice = "set HF_HOME to a folder that this user may write"
        yield Result("downloads", "problem", f"{folder} cannot be written", advice)
        return
    little = free < _LITTLE_DISK
    advice = "models of 8B parameters take 16 GB: set HF_HOME to a larger disk"
    yield Result("downloads", "warning" if little else "ok", f"{format_size(free)} free in {folder}", advice * little)


def _files() -> Iterator[Result]:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = hard != resource.RLIM_INFINITY and hard < _FEW_FILES
    advice = f"raise the limit to {_FEW_FILES} (ulimit -Hn), or lower --max-connections"
    text = "any number" if hard == resource.RLIM_INFINITY else f"at most {hard:,}"
    yield Result("open files", "warning" if few else "ok", text, advice * few)


def _port(port: int) -> Result:
    try:
        listening_socket("0.0.0.0", port).close()
    except OSError as error:
        return Result("port", "problem", f"{port}: {error.strerror}", "end what listens there, or choose --port")
    return Result("port", "ok", f"{port} is free")
