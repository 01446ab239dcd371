"""Checks of RoPE in place, and of the KV cache write with and without RoPE and QK norm."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from octavo_engine.kernels.attention.kv_write import write_heads, write_heads_kernel, write_kv, write_kv_kernel
from octavo_engine.kernels.attention.rope import rope, rope_kernel, tile_shape
from tests.kernels.by_bits import by_bits
from tests.kernels.check import Build, Check
from tests.kernels.rounding import FP8, assert_rounded_alike, to_fp8

_EPS = 1e-6


@dataclass(frozen=True)
class _Shape:
    heads: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    tokens: int = 3
    norm: bool = False
    fp8: bool = False
    block_size: int = 16

    @property
    def name(self) -> str:
        kind = f"{self.tokens}x{self.heads}_{self.kv_heads}x{self.head_dim}_{self.dtype}".replace("torch.", "")
        return kind + "_norm" * self.norm + "_fp8" * self.fp8 + f"_block{self.block_size}" * (self.block_size != 16)


def _projection(shape: _Shape, device: torch.device) -> Tensor:
    """[T, H + 2 K, D] in a slice of a wider tensor."""
    width = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    wide = torch.randn(shape.tokens, width + 64, device=device).mul_(3).to(shape.dtype)
    return wide[:, :width].unflatten(1, (-1, shape.head_dim))


def _angles(shape: _Shape, device: torch.device) -> tuple[Tensor, Tensor]:
    angles = torch.randn(shape.tokens, 1, shape.head_dim // 2, device=device) * 100
    return angles.cos(), angles.sin()


def _normalised(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.double()
    unit = (wide / (wide.square().mean(-1, keepdim=True) + _EPS).sqrt()).to(x.dtype)
    return (unit.double() * weight.double()).to(x.dtype)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate by complex multiplication, in float64, rounded once."""
    first, second = x.double().chunk(2, dim=-1)
    product = torch.complex(first, second) * torch.complex(cos.double(), sin.double())
    return torch.cat((product.real, product.imag), dim=-1).to(x.dtype)


def _size(x: Tensor) -> Tensor:
    """Return what a rotation keeps: the length of each pair of numbers, in both places."""
    first, second = x.double().chunk(2, dim=-1)
    return torch.hypot(first, second).repeat(1, 1, 2)


def _in_place(shape: _Shape, device: torch.device) -> None:
    """Some heads of a projection; the others stay as they are."""
    heads, (cos, sin) = _projection(shape, device), _angles(shape, device)
    before = heads.clone()
    rope(heads[:, : shape.heads], cos, sin)
    assert_rounded_alike(heads[:, : shape.heads], _rotated(before[:, : shape.heads], cos, sin))
    assert torch.equal(heads[:, shape.heads :], before[:, shape.heads :])


def _written(shape: _Shape, device: torch.device) -> None:
    """Queries rotated in place, keys and values in their slots and nowhere else; one token is padding.

    The others' slots are a block's first and last one and some in between.
    """
    heads, (cos, sin) = _projection(shape, device), _angles(shape, device)
    query, key, value = heads.clone().split((shape.heads, shape.kv_heads, shape.kv_heads), dim=1)
    weights = tuple((torch.rand(shape.head_dim, device=device) + 0.5).to(shape.dtype) for _ in range(2))
    size = shape.block_size
    cache = torch.full((2, 4, size, shape.kv_heads, shape.head_dim), torch.nan, device=device)
    key_cache, value_cache = cache.to(FP8 if shape.fp8 else shape.dtype)
    edges, others = torch.tensor([2 * size, -1, 2 * size - 1], device=device), torch.randperm(4 * size, device=device)
    slots = torch.cat((edges, others[~torch.isin(others, edges)]))[: shape.tokens]
    scales = {"key_scale": 0.03, "value_scale": 0.5} if shape.fp8 else {}
    norms = weights if shape.norm else None
    result = write_heads(heads, key_cache, value_cache, slots, cos, sin, norms=norms, eps=_EPS, **scales)
    if shape.norm:
        query, key = _normalised(query, weights[0]), _normalised(key, weights[1])
    assert result.data_ptr() == heads.data_ptr()
    assert_rounded_alike(result, _rotated(query, cos, sin), _size(query))
    written = slots >= 0
    for cached, new, sizes, scale in (
        (key_cache, _rotated(key, cos, sin), _size(key), 0.03),
        (value_cache, value, value, 0.5),
    ):
        flat = cached.flatten(0, 1)
        found, expected = flat[slots[written]], new[written]
        if shape.fp8:  # of which half are beyond 448 * 0.03: those are the largest there is
            assert_rounded_alike(found, to_fp8(expected.double() / scale))
        else:
            assert_rounded_alike(found, expected, sizes[written])
        assert int((~flat.float().isnan()).any(-1).any(-1).sum()) == int(written.sum()), "nothing else was written"


def _written_as_they_are(shape: _Shape, device: torch.device) -> None:
    """Check that `write_kv`, with tokens at different strides, writes what `write_heads` writes without angles."""
    heads, (cos, sin) = _projection(shape, device), _angles(shape, device)
    key, value = heads[:, shape.heads : -shape.kv_heads].clone(), heads[:, -shape.kv_heads :]
    cache = torch.full((4, 4, shape.block_size, shape.kv_heads, shape.head_dim), torch.nan, device=device)
    found, expected = cache.to(FP8 if shape.fp8 else shape.dtype).chunk(2)
    slots = torch.randperm(4 * shape.block_size, device=device)[: shape.tokens]
    slots[1:2] = -1
    write_kv(key, value, *found, slots, 0.03, 0.5)
    write_heads(heads, *expected, slots, torch.ones_like(cos), torch.zeros_like(sin), key_scale=0.03, value_scale=0.5)
    if not shape.fp8:  # which alone has scales
        assert torch.equal(found[0].flatten(0, 1)[slots[0]], key[0])
    assert torch.equal(found.view(torch.uint8), expected.view(torch.uint8))


def _keys_alone(dtype: torch.dtype, device: torch.device) -> None:
    """Of a latent cache, whose values are a part of its keys: 576 numbers, and nothing at slot -1."""
    key = torch.randn(3, 1, 576, device=device).to(dtype)
    cache = torch.full((2, 16, 1, 576), torch.nan, device=device, dtype=dtype)
    write_kv(key, None, cache, None, torch.tensor([17, -1, 4], device=device))
    found = cache.flatten(0, 1)[:, 0]
    assert torch.equal(found[[17, 4]], key[[0, 2], 0])
    assert int(found.isnan().all(1).sum()) == 30


def _fp8_keeps_nan(device: torch.device) -> None:
    """Check that NaN stays NaN in a cache of FP8, and that too large values become the largest number."""
    heads = torch.zeros(1, 3, 64, device=device)
    heads[0, 2, :3] = torch.tensor([torch.nan, 1e30, -torch.inf], device=device)
    caches = [torch.zeros(1, 16, 1, 64, device=device).to(FP8) for _ in range(2)]
    angles = torch.zeros(1, 1, 32, device=device)
    write_heads(heads, *caches, torch.tensor([5], device=device), angles.cos(), angles)
    found = caches[1].float()[0, 5, 0, :3]
    assert bool(found[0].isnan())
    assert found[1:].tolist() == [448, -448]


_SHAPES = (
    _Shape(9, 3, 64, torch.bfloat16),
    _Shape(4, 1, 80, torch.float32),
    _Shape(5, 5, 96, torch.float16, norm=True),
    _Shape(8, 2, 128, torch.bfloat16, tokens=1),
    _Shape(8, 2, 128, torch.bfloat16, norm=True),
    _Shape(8, 1, 256, torch.float32, norm=True),
    _Shape(4, 2, 24, torch.float32),
    _Shape(8, 2, 128, torch.bfloat16, fp8=True),
    _Shape(4, 1, 80, torch.float32, norm=True, fp8=True),
    _Shape(16, 1, 64, torch.float16, tokens=6, block_size=32),
    _Shape(8, 4, 96, torch.float32, tokens=6, block_size=64),
    _Shape(16, 1, 256, torch.float16, tokens=6, norm=True, block_size=128),
)
_LARGE = (_Shape(32, 8, 128, torch.bfloat16, tokens=61), _Shape(16, 8, 128, torch.bfloat16, tokens=61, norm=True))
CHECKS = [Check(f"in_place_{shape.name}", partial(_in_place, shape)) for shape in (*_SHAPES[:5], _SHAPES[-1])]
CHECKS += [
    Check(f"written_{shape.name}", partial(_written, shape), large)
    for shapes, large in ((_SHAPES, False), (_LARGE, True))
    for shape in shapes
]
CHECKS += [Check(f"as_they_are_{shape.name}", partial(_written_as_they_are, shape)) for shape in _SHAPES[3:10]]
CHECKS.append(Check("fp8_keeps_nan", _fp8_keeps_nan))
CHECKS.append(Check("fp8_keeps_nan_by_bits", by_bits(_fp8_keeps_nan)))
CHECKS += [
    Check(f"keys_alone_{dtype}".replace("torch.", ""), partial(_keys_alone, dtype))
    for dtype in (torch.bfloat16, torch.float32)
]


def _write_build(name: str, *, heads: int, kv_heads: int, head_dim: int, norm: bool, fp8: bool) -> Build:
    padded, tile = tile_shape(head_dim)
    cache = "*fp8e4nv" if fp8 else "*bf16"
    types = {
        "heads": "*bf16",
        "key_cache": cache,
        "value_cache": cache,
        "slots": "*i64",
        "cos": "*fp32",
        "sin": "*fp32",
    }
    types |= dict.fromkeys(("query_norm", "key_norm"), "*bf16") if norm else {}
    types |= dict.fromkeys(("eps", "key_scale", "value_scale"), "fp32") | {"token_stride": "i32"}
    constants = {"HEADS": heads, "KV_HEADS": kv_heads, "HALF": head_dim // 2, "HALF_PADDED": padded, "TILE": tile}
    return Build(
        name,
        write_heads_kernel,
        types,
        constants | {"NORM": norm} | ({} if norm else {"query_norm": None, "key_norm": None}),
        warps=1,
        max_registers=64,
        max_shared=0,
        sass=("LDG.E.128", "STG.E.128"),
    )


_PADDED, _TILE = tile_shape(128)
BUILDS = [
    Build(
        "rope",
        rope_kernel,
        {"heads": "*bf16", "cos": "*fp32", "sin": "*fp32", "token_stride": "i32"},
        {"COUNT": 32, "HALF": 64, "HALF_PADDED": _PADDED, "TILE": _TILE},
        warps=1,
        max_registers=64,
        max_shared=0,
        sass=("LDG.E.128", "STG.E.128"),
    ),
    Build(
        "write_kv",
        write_kv_kernel,
        dict.fromkeys(("key", "value", "key_cache", "value_cache"), "*bf16")
        | {"slots": "*i64", "key_scale": "fp32", "value_scale": "fp32", "key_stride": "i32", "value_stride": "i32"},
        {"ROW": 1024, "BLOCK": 256},
        warps=1,
        max_registers=64,
        max_shared=0,
        sass=("LDG.E.128", "STG.E.128"),
    ),
    _write_build("write_heads_llama_8b", heads=32, kv_heads=8, head_dim=128, norm=False, fp8=False),
    _write_build("write_heads_qwen3", heads=16, kv_heads=8, head_dim=128, norm=True, fp8=False),
    _write_build("write_heads_fp8", heads=32, kv_heads=8, head_dim=128, norm=False, fp8=True),
    _write_build("write_heads_80", heads=32, kv_heads=8, head_dim=80, norm=False, fp8=False),
]
