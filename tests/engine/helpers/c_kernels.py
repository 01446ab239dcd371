"""The C kernels for each instruction set of this machine, and random numbers for them."""

from __future__ import annotations

import shutil

import pytest
import torch

from octavo_engine.kernels.cpu import build, library
from octavo_engine.kernels.cpu.features import cpu_flags
from octavo_engine.kernels.cpu.library import CPUKernels

FLAGS = cpu_flags()

SAME_CODE = {"avx512_vnni", "avx_vnni"}
"""Need not be compiled: the first's parts are tested with `avx512_bf16` or `avx512`, the second's with `avx2` but for
products of whole numbers, which test_quantized.py compiles for it."""

LEVELS = [level for level, (needed, _) in build.LEVELS.items() if FLAGS.issuperset(needed) and level not in SAME_CODE]

REASON = "the kernels need AVX2 or NEON, and gcc"

needs_kernels = pytest.mark.skipif(shutil.which("gcc") is None or not LEVELS, reason=REASON)


@pytest.fixture(scope="module", params=LEVELS or [pytest.param("none", marks=pytest.mark.skip(REASON))])
def kernels(request: pytest.FixtureRequest) -> CPUKernels:
    return kernels_for(request.param)


def kernels_for(level: str) -> CPUKernels:
    """The kernels for one instruction set, compiled now or when these sources were last used."""
    if shutil.which("gcc") is None:
        pytest.skip(REASON)
    return library.load(build.library_for(level))


def random(*shape: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def lost_in_8_bits(x: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """The most that rounding can change: each input by half of 1/127 of the largest of its 32."""
    largest = x.double().abs().unflatten(1, (-1, 32)).amax(2).clamp(min=1e-36).repeat_interleave(32, 1)
    return largest @ exact.abs().T / 254
