"""Times work on a device, and reads versions, clocks and temperature."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

_PACKAGES = ("torch", "triton", "transformers", "numpy", "safetensors", "tokenizers")
_ROUNDS, _CALLS, _WARM_UP = 7, 10, 3


def seconds_of(work: Callable[[int], Any], device: torch.device) -> list[float]:
    """Return the seconds per call of `work` in each of some rounds of some calls; `work` gets the call's number.

    The times are from the device's own events, so that the host's time before the device begins is not counted.
    """
    for index in range(_WARM_UP):
        work(index)
    durations = []
    for _ in range(_ROUNDS):
        if device.type != "cuda":
            begin = time.perf_counter()
            for index in range(_CALLS):
                work(index)
            durations.append((time.perf_counter() - begin) / _CALLS)
            continue
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        torch.cuda.synchronize(device)
        events[0].record()
        for index in range(_CALLS):
            work(index)
        events[1].record()
        events[1].synchronize()
        durations.append(events[0].elapsed_time(events[1]) / 1e3 / _CALLS)
    return durations


def graphed_seconds_of(work: Callable[[int], Any], device: torch.device, *, calls: int = 16) -> list[float]:
    """Return what `seconds_of` does, from a CUDA graph of several calls, so that launches by the host do not count."""
    if device.type != "cuda":
        return seconds_of(work, device)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for index in range(3):
            work(index)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for index in range(calls):
            work(index)
    return [each / calls for each in seconds_of(lambda _: graph.replay(), device)]


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that matter."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def describe(device: torch.device) -> dict[str, Any]:
    """Return name, memory, driver, clocks and temperature; they are read, never set."""
    if device.type != "cuda":
        return {"name": f"CPU, {torch.get_num_threads()} threads", "versions": versions()}
    properties = torch.cuda.get_device_properties(device)
    said = {
        "name": properties.name,
        "memory_bytes": properties.total_memory,
        "multiprocessors": properties.multi_processor_count,
        "cuda": torch.version.cuda,
        "versions": versions(),
    }
    return said | {"now": clocks()}


def clocks() -> dict[str, str]:
    """Return nvidia-smi's current values of the first GPU; empty if there is no nvidia-smi."""
    names = ("driver_version", "clocks.sm", "clocks.mem", "clocks.max.sm", "temperature.gpu", "power.draw")
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return {}
    command = [tool, f"--query-gpu={','.join(names)}", "--format=csv,noheader"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    if answer.returncode:
        return {"nvidia-smi": answer.stderr.strip()[:200]}
    return dict(zip(names, (value.strip() for value in answer.stdout.splitlines()[0].split(",")), strict=False))


def short_name(device: torch.device) -> str:
    """Return `h200` for `NVIDIA H200`, `h100` for `NVIDIA H100 80GB HBM3`: the middle of a result file's name."""
    if device.type != "cuda":
        return "cpu"
    name = torch.cuda.get_device_name(device)
    found = re.search(r"\b[A-Z]{1,3}\d{2,4}[A-Z]?\b", name)
    return (found[0] if found else name.replace(" ", "-")).lower()
