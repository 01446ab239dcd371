"""The memory of a device: what there is in all, and how much of it is free."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from pathlib import Path

import torch

from octavo_engine.runner.cgroups import cgroup_memory

LIMIT = "the memory limit of this container or cgroup"
"""The name of a container's memory, which an administrator can raise without another device."""


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """The memory of a device in bytes; on a CPU, of the machine or the container's limit."""

    total: int
    free: int
    name: str

    def budget(self, utilization: float) -> int:
        """Return the bytes that we may take if all programs together may use the share `utilization` of the device."""
        return int(self.total * utilization) - (self.total - self.free)

    def share(self, ranks: int) -> DeviceMemory:
        """Return the share of this memory that each of `ranks` processes may use."""
        name = self.name if ranks == 1 else f"a share of 1/{ranks} of {self.name}"
        return DeviceMemory(self.total // ranks, self.free // ranks, name)


def device_memory(device: torch.device) -> DeviceMemory:
    """Return the total and the free memory of `device` now.

    A GPU's memory that PyTorch keeps of tensors which are gone, as of a closed engine, counts as free.
    """
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(device)
        return DeviceMemory(total, free, torch.cuda.get_device_name(device))
    return host_memory()


def host_memory() -> DeviceMemory:
    """Return the machine's memory, or the limit of this process's control groups if that is less."""
    meminfo = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    total, free = (int(meminfo[key].split()[0]) * 1024 for key in ("MemTotal", "MemAvailable"))
    limited = cgroup_memory()
    if limited is not None and limited[0] < total:
        return DeviceMemory(limited[0], min(limited[1], free), LIMIT)
    return DeviceMemory(total, free, "this machine's memory")
