"""Kernels compiled for GPUs other than Hopper: a few, which came closest to what those lack. `devices.py` has all."""

from __future__ import annotations

import pytest
import torch

from octavo_engine.kernels.attention.paged_attention import tile_shape
from octavo_engine.kernels.experts.moe import SOME_ROWS, tiles_for
from tests.cluster.layout import user_cache
from tests.kernels.check import Build
from tests.kernels.devices import DEVICES, Device, Found, builds_of, compiled_on, failures, table

A100, A10, *_ = DEVICES


@pytest.mark.parametrize(
    ("device", "name"),
    [
        (A10, "prefill_256"),  # took 136 KiB
        (A10, "write_heads_fp8"),  # Triton has no e4m3 there
        (A100, "interleaved_linear_minimum_16"),  # PTX subtracts no bfloat16 there
        (A100, "quantized_linear_e4m3_16"),
    ],
    ids=lambda it: it if isinstance(it, str) else it.name,
)
def test_builds_for_other_gpus(device: Device, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(user_cache() / "triton"))
    found = compiled_on(device, builds_of(device)[name])
    assert failures(device, {name: found}) == []
    assert found.spilled == 0


def test_tiles_follow_the_shared_memory_of_a_program() -> None:
    half = torch.bfloat16
    large, small = (tile_shape(4, 256, 4096, half, device.shared_memory) for device in (A100, A10))
    assert (large.rows, small.rows) == (128, 64)
    assert tile_shape(4, 128, 4096, half, A10.shared_memory) == tile_shape(4, 128, 4096, half)
    rows = 2 * SOME_ROWS * 8
    assert tiles_for(rows, 8, shared_memory=A100.shared_memory) == tiles_for(rows, 8)
    assert tiles_for(rows, 8, shared_memory=A10.shared_memory) == tiles_for(SOME_ROWS * 8, 8)


def test_products_in_fp8_are_not_built_where_there_are_none() -> None:
    names: dict[str, dict[str, Build]] = {device.name: builds_of(device) for device in DEVICES}
    products = {"block_product_of_few_tokens", "quantize_tokens_of_4096"}
    assert products <= names["L4"].keys()
    assert not products & names["A10"].keys()
    assert names["A10"]["decode_fp8"].signature["key_cache"] == "*u8:16"


def test_what_would_not_run_is_said() -> None:
    found: dict[str, Found | Exception] = {"a": Found(32, 0, 120 << 10), "b": ValueError("no fp8"), "c": Found(9, 8, 0)}
    assert failures(A10, found) == [
        "A10: a takes 120.0 KiB of shared memory, not 99",
        "A10: b does not compile: ValueError: no fp8",
    ]
    assert table({A10: found}).splitlines()[-1] == "| A10 (sm_86) | 3 | 2 | 120.0 of 99 (a) | c 8 |"
