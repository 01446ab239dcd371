"""Writing keys and values into their slots."""

from __future__ import annotations

import torch

from octavo_engine.attention.torch_reference import to_cache
from octavo_engine.kernels.kv_write import kv_write_kernel, write_kv
from tests.kernels.check import Build, Check


def _slices_of_a_fused_projection(device: torch.device) -> None:
    """What a decoder layer gives: key and value are slices of one tensor; a padding token is written nowhere."""
    fused = torch.randn(3, 6, 64, device=device)
    caches = [torch.full((4, 16, 2, 64), torch.nan, device=device) for _ in range(2)]
    slots = torch.tensor([17, -1, 63], device=device)
    write_kv(fused[:, 2:4], fused[:, 4:], *caches, slots)
    for cache, first in zip(caches, (2, 4), strict=True):
        flat = cache.flatten(0, 1)
        assert torch.equal(flat[17], fused[0, first : first + 2])
        assert torch.equal(flat[63], fused[2, first : first + 2])
        assert int((~flat.isnan()).any(-1).any(-1).sum()) == 2, "nothing else was written"


def _fp8_as_pytorch_writes_it(device: torch.device) -> None:
    """Bit for bit, scaled and saturated; every number that FP8 has, and on hardware those between.

    Triton's interpreter does not round to FP8 as hardware does (17 becomes 18), so it is given no number to round.
    """
    numbers = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    numbers = numbers[~numbers.isnan()]
    many = torch.tensor([449.0, -1e30, torch.inf, -torch.inf])
    between = torch.randn(512 - len(numbers) - len(many)) * 10 * (device.type != "cpu")
    key = torch.cat((numbers, many, between)).view(8, 1, 64).to(device)
    value = key.flip(0)
    caches = [torch.full((1, 16, 1, 64), torch.nan, device=device).to(torch.float8_e4m3fn) for _ in range(2)]
    write_kv(key * 0.25, value * 8, *caches, torch.arange(8, device=device), 0.25, 8.0)
    for cache, x, scale in zip(caches, (key * 0.25, value * 8), (0.25, 8.0), strict=True):
        expected = to_cache(x, torch.float8_e4m3fn, scale).view(torch.uint8)
        assert torch.equal(cache[0, :8].view(torch.uint8), expected)
        assert float(cache[0, :8].float().abs().max()) == 448, "saturated, not NaN"


CHECKS = [
    Check("slices_of_a_fused_projection", _slices_of_a_fused_projection),
    Check("fp8_as_pytorch_writes_it", _fp8_as_pytorch_writes_it),
]

_POINTERS = dict.fromkeys(("key", "value", "key_cache", "value_cache"), "*bf16") | {"slots": "*i64"}
_SCALARS = {"key_stride": "i32", "value_stride": "i32", "inverse_key_scale": "fp32", "inverse_value_scale": "fp32"}
BUILDS = [
    Build(
        "kv_write",
        kv_write_kernel,
        _POINTERS | _SCALARS,
        {"ROW": 1024, "ROW_PADDED": 1024},
        max_registers=64,
    ),
    Build(
        "kv_write_fp8",
        kv_write_kernel,
        _POINTERS | dict.fromkeys(("key_cache", "value_cache"), "*fp8e4nv") | _SCALARS,
        {"ROW": 1024, "ROW_PADDED": 1024},
        max_registers=64,
        sass=("F2FP.SATFINITE.E4M3.F32.PACK_AB",),  # rounds to nearest, ties to even
    ),
]
