"""Writing keys and values into their slots."""

from __future__ import annotations

import torch

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


CHECKS = [Check("slices_of_a_fused_projection", _slices_of_a_fused_projection)]

_POINTERS = dict.fromkeys(("key", "value", "key_cache", "value_cache"), "*bf16") | {"slots": "*i64"}
BUILDS = [
    Build(
        "kv_write",
        kv_write_kernel,
        _POINTERS | {"key_stride": "i32", "value_stride": "i32"},
        {"ROW": 1024, "ROW_PADDED": 1024},
        max_registers=64,
    )
]
