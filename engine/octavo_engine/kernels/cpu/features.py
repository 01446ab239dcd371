"""The features of this machine's CPU that decide how a model is computed."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True, slots=True)
class CPUFeatures:
    """Instruction sets of an x86 CPU; on any other it has none of them."""

    avx2: bool = False
    avx512: bool = False
    avx512_bf16: bool = False
    amx: bool = False
    """Tiles of bfloat16, which this process may use."""


_AMX = frozenset({"amx_tile", "amx_bf16", "amx_int8"})
_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XTILEDATA = 158, 0x1023, 18
"""x86-64's system call that asks for registers, its operation, and the registers of AMX."""


@cache
def cpu_flags() -> frozenset[str]:
    """Return the flags of the first CPU in /proc/cpuinfo that this process may use; none without that file.

    Linux calls them flags on x86 and Features on arm64.
    """
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    flags = frozenset(next((line for line in lines if line.startswith(("flags", "Features"))), "").split())
    return flags if flags.isdisjoint(_AMX) or _may_use_tiles() else flags - _AMX


def _may_use_tiles() -> bool:
    """Ask Linux for AMX's registers, which a process may not use otherwise; its threads get them too."""
    system_call = ctypes.CDLL(None).syscall
    system_call.argtypes, system_call.restype = (ctypes.c_long,) * 3, ctypes.c_long
    granted: int = system_call(_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XTILEDATA)
    return granted == 0


def cpu_model() -> str:
    """Return what /proc/cpuinfo calls the first CPU; empty without that file."""
    names = {"model name", "CPU implementer", "CPU part"}
    try:
        first = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    except OSError:
        return ""
    fields = (line.partition(":") for line in first.splitlines())
    return " ".join(value.strip() for name, _, value in fields if name.strip() in names)


def cpu_features() -> CPUFeatures:
    """Return the features of this machine's CPU."""
    flags = cpu_flags()
    return CPUFeatures(
        avx2={"avx2", "fma"} <= flags,
        avx512={"avx512f", "avx512vl", "avx512bw", "avx512dq"} <= flags,
        avx512_bf16="avx512_bf16" in flags,
        amx={"amx_tile", "amx_bf16"} <= flags,
    )
