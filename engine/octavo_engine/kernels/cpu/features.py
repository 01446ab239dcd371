"""The features of this machine's CPU that decide how a model is computed."""

from __future__ import annotations

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
    """Tiles of bfloat16."""


@cache
def cpu_flags() -> frozenset[str]:
    """The flags of the first CPU in /proc/cpuinfo; none where there is no such file."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line for line in lines if line.startswith("flags")), "").split())


def cpu_features() -> CPUFeatures:
    """The features of this machine's CPU."""
    flags = cpu_flags()
    return CPUFeatures(
        avx2={"avx2", "fma"} <= flags,
        avx512={"avx512f", "avx512vl", "avx512bw", "avx512dq"} <= flags,
        avx512_bf16="avx512_bf16" in flags,
        amx={"amx_tile", "amx_bf16"} <= flags,
    )
