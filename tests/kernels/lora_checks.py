"""Checks of the LoRA kernels, shrink and expand."""

from __future__ import annotations

import torch

from octavo_engine.kernels.lora import LoraWeights, add_lora, group_by_adapter, lora_expand_kernel, lora_shrink_kernel
from octavo_engine.model.layers.adapters.lora import LoraBatch, LoraLayer
from tests.kernels.check import Build, Check
from tests.kernels.poison import half_precision, poisoned


def _weights(
    device: torch.device, dtype: torch.dtype, adapters: int, features: int, widths: tuple[int, ...], rank: int
) -> LoraWeights:
    a = torch.randn(adapters, len(widths) * rank, features, device=device) / features**0.5
    b = torch.randn(adapters, sum(widths), rank, device=device)
    return LoraWeights(a.to(dtype), b.to(dtype), torch.rand(adapters, device=device) + 0.5, widths)


def _reference(y: torch.Tensor, x: torch.Tensor, weights: LoraWeights, adapter_of_token: torch.Tensor) -> torch.Tensor:
    """Token by token and slice by slice, in float64."""
    expected, rank = y.double(), weights.b.shape[2]
    for token, adapter in enumerate(adapter_of_token.tolist()):
        if adapter < 0:
            continue
        a, b = weights.a[adapter].double().split(rank), weights.b[adapter].double().split(weights.widths)
        added = torch.cat([rows @ (down @ x[token].double()) for down, rows in zip(a, b, strict=True)])
        expected[token] += weights.scales[adapter].double() * added
    return expected


def _compare(
    device: torch.device,
    dtype: torch.dtype,
    adapter_of_token: list[int],
    features: int,
    widths: tuple[int, ...],
    rank: int,
) -> None:
    """`output` and `x` are slices of wider tensors; an adapter that no row uses is not a number."""
    used = torch.tensor(adapter_of_token, device=device)
    tokens, out, adapters = len(adapter_of_token), sum(widths), max(adapter_of_token) + 2
    weights = _weights(device, dtype, adapters, features, widths, rank)
    weights.a[-1], weights.b[-1] = torch.nan, torch.nan
    x = torch.randn(tokens, features + 16, device=device).to(dtype)[:, :features]
    y = torch.randn(tokens, out + 16, device=device).to(dtype)[:, :out]
    before, expected = y.clone(), _reference(y, x, weights, used)
    with poisoned():
        add_lora(y, x, weights, group_by_adapter(used, adapters))
    # What is between A and B is rounded to the type too, so that an error is relative to what is added.
    error, added = (1e-5 if dtype == torch.float32 else 3e-2), (expected - before.double()).abs().amax()
    torch.testing.assert_close(y.double(), expected, rtol=error, atol=error * max(1.0, float(added) / 4))
    assert torch.equal(y[used < 0], before[used < 0])


def _alone_and_in_a_batch(device: torch.device) -> None:
    """A token's result is the same to the bit, whatever other tokens are in the step."""
    used = torch.tensor([1, 0, 1, 1, -1, 0] + [1] * 30, device=device)
    weights = _weights(device, half_precision(device), 2, 1200, (32, 16), 16)
    x = torch.randn(len(used), 1200, device=device).to(weights.a.dtype)
    y = torch.randn(len(used), 48, device=device).to(weights.a.dtype)
    batched = y.clone()
    add_lora(batched, x, weights, group_by_adapter(used, 2))
    for token in (0, 1, 35):
        alone = y[token : token + 1].clone()
        add_lora(alone, x[token : token + 1], weights, group_by_adapter(used[token : token + 1], 2))
        assert torch.equal(alone[0], batched[token])


def _refuses_what_it_cannot(device: torch.device) -> None:
    """Ranks and widths that the kernels are not made for."""
    for widths, rank in (((32,), 24), ((32,), 8), ((40,), 16)):
        try:
            _weights(device, torch.float32, 1, 64, widths, rank)
        except ValueError:
            continue
        raise AssertionError(f"widths {widths} of rank {rank} were taken")


def _odd_rows(device: torch.device) -> None:
    """A layer whose rows are no multiple of 16, such as a router, has padded slots; a slot is used again."""
    batch, slots = LoraBatch(), torch.tensor([1, -1, 0, 1], dtype=torch.int32, device=device)
    layer = LoraLayer(batch, (6,), 40, slots=2, rank=16, dtype=torch.float32, device=device)
    x, expected = torch.randn(4, 40, device=device), torch.zeros(4, 6, device=device)
    for rank in (9, 3):
        for slot in range(2):
            a, b = torch.randn(rank, 40, device=device), torch.randn(6, rank, device=device)
            layer.clear(slot)
            layer.put_a(slot, 0, a)
            layer.put_b(slot, slice(6), b)
            expected[slots == slot] = x[slots == slot] @ a.t() @ b.t()
        batch.use_device(slots, 2)
        torch.testing.assert_close(layer.add_to(torch.zeros(4, 6, device=device), x), expected, rtol=1e-4, atol=1e-4)


def _check(
    name: str,
    adapter_of_token: list[int],
    features: int,
    widths: tuple[int, ...],
    rank: int,
    *,
    exact: bool,
    large: bool,
) -> Check:
    def run(device: torch.device) -> None:
        dtype = torch.float32 if exact else half_precision(device)
        _compare(device, dtype, adapter_of_token, features, widths, rank)

    return Check(name, run, large)


_PREFILL = [0] * 40 + [2] * 20 + [-1] * 5 + [1, 2] * 3
_MIXED = _PREFILL * 8 + list(range(64))
CHECKS = [
    _check("prefill_of_fused_projections", _PREFILL, 200, (160, 32, 16), 16, exact=True, large=False),
    _check("decode_of_different_adapters", [3, -1, 0, 2, 1], 1500, (144,), 32, exact=True, large=False),
    _check("ranks_in_blocks", _PREFILL, 40, (16, 32), 512, exact=True, large=False),
    _check("half_precision", _PREFILL, 256, (64, 64), 64, exact=False, large=False),
    Check("alone_and_in_a_batch", _alone_and_in_a_batch),
    Check("refuses_what_it_cannot", _refuses_what_it_cannot),
    Check("odd_rows", _odd_rows),
    *(
        _check(f"llama_8b_qkv_rank_{rank}", _MIXED, 4096, (4096, 1024, 1024), rank, exact=False, large=True)
        for rank in (16, 64, 512)
    ),
]

_TILES = {"order": "*i32", "tiles": "*i32", "num_tiles": "*i32", "num_tokens": "i32"}
_SHRINK = {"hidden": "*fp32", "x": "*bf16", "a": "*bf16", "x_stride": "i32"} | _TILES
_EXPAND = {"output": "*bf16", "hidden": "*fp32", "b": "*bf16", "scales": "*fp32", "starts": "*i32"} | _TILES
_EXPAND_SIZES = {"SPLITS": 4, "TILE_ROWS": 32, "BLOCK_OUT": 128, "PRECISION": "tf32"}
BUILDS = [
    Build(
        f"lora_shrink_rank_{rank}",
        lora_shrink_kernel,
        _SHRINK,
        {"IN": 4096, "PART": 1024, "BLOCK_RANK": rank, "TILE_ROWS": 32, "BLOCK_IN": 128, "PRECISION": "tf32"},
        max_registers=80,
        max_shared=48 * 1024,
        sass=("HMMA", "LDGSTS.E.BYPASS.128"),
        max_loop={"all": 108 if rank == 16 else 164},
    )
    for rank in (16, 64)
] + [
    Build(
        f"lora_expand_rank_{rank}",
        lora_expand_kernel,
        _EXPAND | {"out": "i32", "output_stride": "i32"},
        {"RANK": rank, "BLOCK_RANK": min(rank, 64)} | _EXPAND_SIZES,
        max_registers=104 if rank <= 64 else 184,  # in a loop over blocks of ranks
        max_shared=8 * 1024,
        sass=("HMMA", "LDG.E.128", "STG.E.128"),
        max_loop={} if rank <= 64 else {"all": 360},
    )
    for rank in (16, 64, 512)
]
