"""Measures the highest rates of the machine, with which all other figures are compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from bench.gpu.clock import seconds_of
from bench.gpu.floors import Rates
from bench.gpu.result import Figure, missing

_LOADS = 8
"""Tiles that one program of the reading kernel loads at the same time."""


@triton.jit
def read_kernel(source, sink, TILE: tl.constexpr, LOADS: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """Reads LOADS tiles of TILE numbers (int32) and keeps nothing; the compiler cannot see that loads are unused."""
    start = tl.program_id(0).to(tl.int64) * (TILE * LOADS) + tl.arange(0, TILE)
    total = tl.zeros([TILE], dtype=tl.int32)
    for index in tl.static_range(LOADS):
        total += tl.load(source + start + index * TILE)
    tl.store(sink + tl.arange(0, TILE), total, mask=total == -1)


@dataclass(frozen=True)
class Sizes:
    """The sizes of the data read and multiplied: several times the L2 cache, and large enough to occupy the whole
    chip."""

    bytes: int
    matrix: int
    matrices: int
    """Pairs of operands that are used in turn."""


FULL = Sizes(bytes=4 << 30, matrix=8192, matrices=3)
TINY = Sizes(bytes=1 << 20, matrix=32, matrices=2)


def measure(device: torch.device, sizes: Sizes) -> tuple[Rates, list[Figure]]:
    """Return the machine's rates, and the figures from which they are computed.

    A rate that cannot be measured here is absent.
    """
    figures = [_copy(device, sizes), _read(device, sizes), *_products(device, sizes)]
    found = {figure.what: figure.value for figure in figures if figure.value is not None}
    matmul = {kind: 1e12 * found[f"{kind} matmul"] for kind in ("bf16", "fp8") if f"{kind} matmul" in found}
    # A float8 product that does not run here cannot be a floor; bfloat16's rate is then used.
    rates = Rates("measured", 1e12 * found["read bandwidth"], {"fp8": matmul["bf16"], **matmul})
    return rates, figures


def _rate(what: str, unit: str, amount: float, seconds: list[float], note: str) -> Figure:
    rates = sorted(amount / each / 1e12 for each in seconds)
    middle = rates[len(rates) // 2]
    return Figure(
        model="machine",
        what=what,
        unit=unit,
        value=middle,
        low=rates[0],
        high=rates[-1],
        rounds=len(rates),
        note=note,
    )


def _noise(num_bytes: int, device: torch.device) -> torch.Tensor:
    return torch.randint(0, 1 << 30, (num_bytes // 4,), dtype=torch.int32, device=device)


def _copy(device: torch.device, sizes: Sizes) -> Figure:
    source = _noise(sizes.bytes, device)
    target = torch.empty_like(source)
    seconds = seconds_of(lambda _: target.copy_(source), device)
    assert torch.equal(target[-1024:], source[-1024:])
    return _rate("copy bandwidth", "TB/s", 2 * source.nbytes, seconds, "bytes read and written")


def _read(device: torch.device, sizes: Sizes) -> Figure:
    """Return the figure of the faster of PyTorch's sum and a kernel that only loads."""
    source = _noise(sizes.bytes, device)
    floats = source.view(torch.float32)
    ways: dict[str, Callable[[int], Any]] = {"torch.sum": lambda _: floats.sum()}
    if device.type == "cuda":
        tile = 1024
        sink = torch.empty(tile, dtype=torch.int32, device=device)
        grid = (source.numel() // (tile * _LOADS),)
        ways["a loading kernel"] = lambda _: read_kernel[grid](source, sink, TILE=tile, LOADS=_LOADS)
    figures = [
        _rate("read bandwidth", "TB/s", source.nbytes, seconds_of(way, device), name) for name, way in ways.items()
    ]
    return max(figures, key=lambda figure: figure.value or 0.0)


def _products(device: torch.device, sizes: Sizes) -> Iterator[Figure]:
    size = sizes.matrix
    pairs = [
        [torch.randn(size, size, device=device).to(torch.bfloat16) for _ in range(2)] for _ in range(sizes.matrices)
    ]
    operations, said = 2 * size**3, f"{size} × {size} × {size}, random data"
    seconds = seconds_of(lambda index: torch.mm(*pairs[index % len(pairs)]), device)
    yield _rate("bf16 matmul", "TFLOP/s", operations, seconds, said)
    try:
        small = [(a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).t()) for a, b in pairs]
        one = torch.ones((), device=device)
        seconds = seconds_of(
            lambda index: torch._scaled_mm(
                *small[index % len(small)], scale_a=one, scale_b=one, out_dtype=torch.bfloat16
            ),
            device,
        )
    except (RuntimeError, NotImplementedError, AttributeError) as error:
        yield missing("machine", "fp8 matmul", f"does not run here: {str(error).splitlines()[0]}")
        return
    yield _rate("fp8 matmul", "TFLOP/s", operations, seconds, f"{said}, one scale a matrix")
