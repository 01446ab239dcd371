"""Checks of the mixture of experts: our Triton kernels' and the one by PyTorch's grouped product."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest.mock import patch

import torch

from octavo_engine.kernels.cpu.quantized import QuantizedPart, QuantizedWeight
from octavo_engine.kernels.experts import moe
from octavo_engine.kernels.experts.experts import ExpertCodes, Experts
from octavo_engine.kernels.experts.moe import (
    SOME_ROWS,
    RoutedRows,
    Tiles,
    mixture_of_experts,
    moe_down_kernel,
    moe_gate_up_kernel,
    moe_sum_kernel,
    multiplies,
    tiles_for,
)
from octavo_engine.kernels.experts.moe_autotune import (
    MixtureOfExperts,
    autotune_mixture_of_experts,
    torch_mixture_of_experts,
)
from octavo_engine.kernels.experts.moe_lora import mixture_with_adapters
from octavo_engine.kernels.gpu_limits import AMPERE_SHARED_MEMORY, HOPPER_SHARED_MEMORY
from octavo_engine.kernels.lora import LoraWeights
from octavo_engine.kernels.quantized.quantized_numbers import dequantize
from tests.kernels.by_bits import by_bits
from tests.kernels.check import Build, Check
from tests.kernels.poison import half_precision, poisoned
from tests.kernels.random_codes import random_part


@dataclass(frozen=True)
class Case:
    """A mixture of random weights."""

    tokens: int
    hidden: int
    intermediate: int
    experts: int
    top_k: int
    gpt_oss: bool = False
    """With biases, and its activation, of whose numbers many are cut off."""


def _reference(x: torch.Tensor, experts: Experts, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Expert by expert, in float64."""
    output = torch.zeros_like(x, dtype=torch.float64)
    for expert in range(len(experts.down)):
        tokens, places = torch.nonzero(chosen == expert, as_tuple=True)
        both = x[tokens].double() @ experts.gate_up[expert].double().T
        if experts.gate_up_bias is not None:
            both += experts.gate_up_bias[expert].double()
        gate, up = both.chunk(2, dim=-1)
        if experts.limit is None:
            inner = gate / (1 + torch.exp(-gate)) * up
        else:
            gate, up = torch.fmin(gate, gate.new_tensor(experts.limit)), up.clip(-experts.limit, experts.limit)
            inner = gate / (1 + torch.exp(-experts.alpha * gate)) * (up + 1)
        added = inner @ experts.down[expert].double().T
        if experts.down_bias is not None:
            added += experts.down_bias[expert].double()
        output.index_add_(0, tokens, weights[tokens, places].double()[:, None] * added)
    return output


def _routed(
    device: torch.device, dtype: torch.dtype, case: Case
) -> tuple[torch.Tensor, Experts, torch.Tensor, torch.Tensor]:
    """Random weights and a random router's choice, distinct for a token, where expert 1 is never chosen."""

    def draw(*shape: int, std: float = 1.0) -> torch.Tensor:
        return (torch.randn(shape, device=device) * std).to(dtype)

    inner, hidden, count = case.intermediate, case.hidden, case.experts
    x = draw(case.tokens, hidden + 16)[:, :hidden]
    experts = Experts(draw(count, 2 * inner, hidden, std=hidden**-0.5), draw(count, hidden, inner, std=inner**-0.5))
    if case.gpt_oss:
        biases = {"gate_up_bias": draw(count, 2 * inner), "down_bias": draw(count, hidden)}
        experts = replace(experts, **biases, limit=0.75, alpha=1.702)
    chances = torch.rand(case.tokens, count, device=device)
    chances[:, 1] = -1
    return x, experts, chances.topk(case.top_k).indices, torch.rand(case.tokens, case.top_k, device=device)


def _compare(compute: MixtureOfExperts, device: torch.device, dtype: torch.dtype, case: Case) -> None:
    """The expert that no token chose is not a number; some choices are of no expert of this rank."""
    x, experts, chosen, weights = _routed(device, dtype, case)
    for tensor in (experts.gate_up, experts.down, experts.gate_up_bias, experts.down_bias):
        if tensor is not None:
            tensor[1] = torch.nan
    chosen[-1], chosen[0, 0] = -1, case.experts
    expected = _reference(x, experts, chosen, weights)
    with poisoned():
        actual = compute(x, experts, chosen, weights)
    assert actual.dtype == dtype
    error = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(actual.double(), expected, rtol=error, atol=error)


def _check(name: str, case: Case, *, exact: bool = True, large: bool = False) -> Check:
    def run(device: torch.device) -> None:
        _compare(mixture_of_experts, device, torch.float32 if exact else half_precision(device), case)

    return Check(name, run, large)


_NUMBERS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


def _in_mxfp4(*shape: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return random codes, scales, and the numbers that they are, in float32."""
    codes = torch.randint(0, 256, (*shape[:-1], shape[-1] // 2), dtype=torch.uint8, device=device)
    scales = torch.randint(118, 126, (*shape[:-1], shape[-1] // 32), dtype=torch.uint8, device=device)
    table = torch.tensor(_NUMBERS, device=device)
    numbers = torch.stack((table[(codes & 15).long()], table[(codes >> 4).long()]), dim=-1).flatten(-2)
    powers = torch.exp2(scales.float() - 127).repeat_interleave(32, dim=-1)
    return codes, scales, numbers * powers


def _mxfp4(case: Case, device: torch.device) -> None:
    """Codes give what the numbers give, which are exact in any type; a scale of 255 is not a number.

    Where the interpreter computes, these are the same bits. On a GPU the tiles of both may differ, and so the order in
    which products are added up.
    """
    dtype = half_precision(device)
    x, experts, chosen, weights = _routed(device, dtype, case)
    gate_up, gate_up_scales, wide_gate_up = _in_mxfp4(*experts.gate_up.shape, device=device)
    down, down_scales, wide_down = _in_mxfp4(*experts.down.shape, device=device)
    plain = replace(experts, gate_up=wide_gate_up.to(dtype), down=wide_down.to(dtype))
    quantized = replace(experts, gate_up=gate_up, down=down, gate_up_scales=gate_up_scales, down_scales=down_scales)
    expected = mixture_of_experts(x, plain, chosen, weights)
    with poisoned():
        found = mixture_of_experts(x, quantized, chosen, weights)
    error = 0.0 if device.type == "cpu" else 2e-2
    torch.testing.assert_close(found, expected, rtol=error, atol=error * float(expected.abs().amax()))
    down_scales[chosen[0, 0], 7] = 255
    found = mixture_of_experts(x, quantized, chosen, weights)
    assert bool(found[0, 7].isnan()) and bool(found[0, :7].isfinite().all())


def _e4m3(rows: int, columns: int, group: int | None, device: torch.device) -> QuantizedPart:
    """Return random numbers of e4m3, with a scale for each group of columns."""
    groups = 1 if group is None else -(-columns // group)
    numbers = torch.randn(rows, columns, device=device).to(torch.float8_e4m3fn)
    scale = torch.rand(rows, groups, device=device) * 0.1
    return QuantizedPart(codes=numbers, scale=scale, bits=8, columns=columns, group=group)


def _numbers(part: QuantizedPart, dtype: torch.dtype) -> torch.Tensor:
    """Return what the codes stand for; of whole numbers as `dequantize` gives them, which has checks of its own."""
    if not part.codes.is_floating_point():
        return dequantize(QuantizedWeight([part]), dtype)
    groups = torch.arange(part.columns, device=part.codes.device) // (part.group or part.columns)
    return (part.codes.float() * part.scale[:, groups]).to(dtype)


def _quantized(kind: str, bits: int, group: int | None, case: Case, device: torch.device) -> None:
    """Codes of any kind and e4m3 give what their numbers give; where the interpreter computes, but for one rounding.

    NumPy adds up the products of a tile in an order that depends on how it lies in memory (seen with AVX2).
    """
    dtype = half_precision(device)
    x, experts, chosen, weights = _routed(device, dtype, case)
    plain, codes = experts, []
    for name in ("gate_up", "down"):
        shape = getattr(experts, name).shape
        rows, columns = shape[0] * shape[1], shape[2]
        part = (
            _e4m3(rows, columns, group, device)
            if kind == "e4m3"
            else random_part(kind, bits, rows, columns, group, device)
        )
        weight = QuantizedWeight([part])
        assert multiplies(weight)
        codes.append(ExpertCodes(weight, case.experts, ()))
        plain = replace(plain, **{name: _numbers(part, dtype).view(shape)})
    expected = mixture_of_experts(x, plain, chosen, weights)
    quantized = replace(experts, gate_up=codes[0].every.parts[0].codes, down=codes[1].every.parts[0].codes)
    with poisoned():
        found = mixture_of_experts(x, replace(quantized, quantized=(codes[0], codes[1])), chosen, weights)
    error = torch.finfo(dtype).eps if device.type == "cpu" else 2e-2
    torch.testing.assert_close(found, expected, rtol=error, atol=error * float(expected.abs().amax()))
    assert bool(found.any())


def _torch_equals_it(device: torch.device) -> None:
    """The other implementation, which may be chosen instead; on a GPU it knows bfloat16 alone."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    for gpt_oss in (False, True):
        _compare(torch_mixture_of_experts, device, dtype, Case(20, 64, 48, 5, 3, gpt_oss))


def _not_a_number_stays_so(device: torch.device) -> None:
    """Check that NaN survives, also where numbers are cut off: a row that went wrong must be visible."""
    x, experts, chosen, weights = _routed(device, torch.float32, Case(4, 32, 32, 4, 2, gpt_oss=True))
    x[2, 5] = torch.nan
    for compute in (mixture_of_experts, torch_mixture_of_experts) if device.type == "cpu" else (mixture_of_experts,):
        output = compute(x, experts, chosen, weights)
        assert bool(output[2].isnan().all()) and bool(output[[0, 1, 3]].isfinite().all())


def _the_faster_is_one_of_them(device: torch.device) -> None:
    """A choice is made, on a GPU by what was measured."""
    _, experts, _, _ = _routed(device, half_precision(device), Case(8, 128, 64, 4, 2, gpt_oss=True))
    chosen, seconds = autotune_mixture_of_experts(experts, top_k=2, tokens=8)
    if device.type == "cuda":
        assert seconds[chosen.__name__] == min(seconds.values()) > 0
        assert len(seconds) == 2
    else:
        assert chosen is torch_mixture_of_experts


def _with_less_shared_memory(device: torch.device) -> None:
    """Prompts have the tiles of fewer rows where large ones do not fit: of 72 KiB at most (the builds `mixed`)."""
    case = Case(150, 64, 32, 2, 1)
    assert tiles_for(case.tokens * case.top_k, case.experts) != tiles_for(SOME_ROWS * case.experts, case.experts)
    with patch.object(moe, "shared_memory", lambda _: AMPERE_SHARED_MEMORY - 1):
        x, experts, chosen, weights = _routed(device, torch.float32, case)
        assert RoutedRows(x, experts, chosen, weights).groups.tile_rows == SOME_ROWS
        _compare(mixture_of_experts, device, torch.float32, case)


def _the_same_again(device: torch.device) -> None:
    """Deterministic, and independent of rows that the router sent nowhere."""
    x, experts, chosen, weights = _routed(device, half_precision(device), Case(9, 64, 32, 4, 2))
    first = mixture_of_experts(x, experts, chosen, weights)
    padded = [torch.cat((part, part[:3])) for part in (x, chosen, weights)]
    padded[1][9:] = -1
    second = mixture_of_experts(padded[0], experts, padded[1], padded[2])
    assert torch.equal(first, second[:9])
    assert not second[9:].any()


def _adapter_weights(device: torch.device, dtype: torch.dtype, case: Case, down: bool) -> LoraWeights:
    """Of two adapters and a third that no token has, which is not a number; rank 16."""
    rows = (case.hidden,) if down else (case.intermediate, case.intermediate)
    columns, count = case.intermediate if down else case.hidden, 3 * case.experts
    a = torch.randn(count, len(rows) * 16, columns, device=device) * columns**-0.5
    b = torch.randn(count, sum(rows), 16, device=device) * 0.25
    a[-case.experts :] = torch.nan
    return LoraWeights(a.to(dtype), b.to(dtype), torch.ones(count, device=device), rows)


def _merged(weight: torch.Tensor, lora: LoraWeights, adapter: int) -> torch.Tensor:
    """The experts' weights with an adapter in them, float64."""
    count, own = len(weight), slice(adapter * len(weight), (adapter + 1) * len(weight))
    a, b = lora.a[own].double().view(count, len(lora.widths), 16, -1), lora.b[own].double()
    deltas = [rows @ a[:, part] for part, rows in enumerate(b.split(lora.widths, dim=1))]
    return weight.double() + torch.cat(deltas, dim=1)


def _with_adapters(case: Case, device: torch.device, *, exact: bool = True) -> None:
    """Each token's experts are those of its adapter's merged weights, or the base's; some choices are of no expert."""
    dtype = torch.float32 if exact else half_precision(device)
    x, experts, chosen, weights = _routed(device, dtype, case)
    chosen[-1], chosen[0, 0] = -1, case.experts
    gate_up, down = (_adapter_weights(device, dtype, case, down) for down in (False, True))
    adapter_of_token = torch.arange(case.tokens, device=device, dtype=torch.int32) % 3 - 1
    with poisoned():
        actual = mixture_with_adapters(x, experts, chosen, weights, gate_up, down, adapter_of_token)
    for adapter in (-1, 0, 1):
        merged, own = experts, adapter_of_token == adapter
        if adapter >= 0:
            both = _merged(experts.gate_up, gate_up, adapter), _merged(experts.down, down, adapter)
            merged = replace(experts, gate_up=both[0], down=both[1])
        expected = _reference(x[own], merged, chosen[own], weights[own])
        if exact:
            torch.testing.assert_close(actual[own].double(), expected, rtol=1e-5, atol=1e-5)
        else:  # some numbers are rounded five times, so that each token's error is looked at as a whole
            error = (actual[own].double() - expected).norm(dim=-1)
            assert bool((error <= 2e-2 * expected.norm(dim=-1)).all()), error / expected.norm(dim=-1)


_QWEN3_30B_DECODE = Case(64, 2048, 768, 128, 8)
CHECKS = [
    _check("decode", Case(5, 96, 80, 8, 3)),
    _check("one_token_int32", Case(1, 64, 64, 4, 1)),
    _check("more_rows_than_a_tile", Case(40, 64, 48, 3, 2)),
    _check("prefill", Case(150, 64, 32, 3, 2)),
    _check("half_precision", Case(20, 128, 64, 4, 2), exact=False),
    _check("gpt_oss", Case(7, 96, 80, 4, 2, gpt_oss=True)),
    _check("qwen3_30b_decode", Case(64, 2048, 768, 128, 8), exact=False, large=True),
    _check("qwen3_30b_prefill", Case(2048, 2048, 768, 128, 8), exact=False, large=True),
    _check("gpt_oss_20b_decode", Case(64, 2880, 2880, 32, 4, gpt_oss=True), exact=False, large=True),
    _check("gpt_oss_20b_prefill", Case(2048, 2880, 2880, 32, 4, gpt_oss=True), exact=False, large=True),
    Check("mxfp4", partial(_mxfp4, Case(7, 96, 160, 4, 2, gpt_oss=True))),
    Check("mxfp4_prefill", partial(_mxfp4, Case(150, 64, 32, 3, 2))),
    Check("mxfp4_gpt_oss_20b", partial(_mxfp4, Case(64, 2880, 2880, 32, 4, gpt_oss=True)), large=True),
    Check("int8", partial(_quantized, "signed", 8, None, Case(3, 96, 80, 3, 2, gpt_oss=True))),
    Check("int8_groups", partial(_quantized, "zeros", 8, 48, Case(3, 96, 96, 3, 2))),
    Check("int4", partial(_quantized, "minimum", 4, 32, Case(3, 96, 80, 3, 2))),
    Check("int4_zeros", partial(_quantized, "zeros", 4, 128, Case(3, 128, 128, 3, 2))),
    Check("int4_supers", partial(_quantized, "supers", 4, 32, Case(1, 256, 256, 3, 2))),
    Check("e4m3_rows", partial(_quantized, "e4m3", 8, None, Case(3, 96, 80, 3, 2, gpt_oss=True))),
    Check("e4m3_blocks", partial(_quantized, "e4m3", 8, 128, Case(3, 192, 128, 3, 2))),
    Check("e4m3_blocks_by_bits", by_bits(partial(_quantized, "e4m3", 8, 128, Case(3, 192, 128, 3, 2)))),
    Check("e4m3_small_blocks", partial(_quantized, "e4m3", 8, 24, Case(3, 96, 80, 3, 2))),
    Check("int4_qwen3_30b_decode", partial(_quantized, "zeros", 4, 128, _QWEN3_30B_DECODE), large=True),
    Check("e4m3_qwen3_30b_decode", partial(_quantized, "e4m3", 8, 128, _QWEN3_30B_DECODE), large=True),
    Check("e4m3_qwen3_30b_prefill", partial(_quantized, "e4m3", 8, 128, Case(2048, 2048, 768, 128, 8)), large=True),
    Check("torch_equals_it", _torch_equals_it),
    Check("not_a_number_stays_so", _not_a_number_stays_so),
    Check("the_faster_is_one_of_them", _the_faster_is_one_of_them),
    Check("the_same_again", _the_same_again),
    Check("less_shared_memory", _with_less_shared_memory),
    Check("with_adapters", partial(_with_adapters, Case(11, 96, 80, 4, 2))),
    Check("gpt_oss_with_adapters", partial(_with_adapters, Case(20, 64, 48, 3, 2, gpt_oss=True))),
    Check("half_precision_with_adapters", partial(_with_adapters, Case(20, 64, 48, 4, 2), exact=False)),
]

_TILES = {"order": "*i32", "tiles": "*i32", "num_tiles": "*i32"}
_GATE_UP = {"inner": "*bf16", "x": "*bf16", "gate_up": "*bf16", "x_stride": "i32"} | _TILES
_DOWN = {"routed": "*bf16", "inner": "*bf16", "down": "*bf16", "weights": "*fp32"} | _TILES
_SIZES = {"BLOCK_INNER": 64, "PRECISION": "tf32"}
_QWEN3_30B = Case(0, 2048, 768, 128, 8)
_GPT_OSS_20B = Case(0, 2880, 2880, 32, 4, gpt_oss=True)


_OF_CODES = {"scales", "zero", "minimum", "super_scale", "super_minimum"}
_NO_CODES = {"SIGNED": False, "GROUP": 0, "SUPER": 1, "OFFSET": 0.0}


@dataclass(frozen=True)
class _Form:
    """How experts are stored."""

    weight: str
    """Triton's type."""
    tensors: Mapping[str, str]
    """The types of what is beside the weight."""
    constants: Mapping[str, Any]


_MXFP4 = _Form("*u8", {"scales": "*u8"}, {"BITS": 0})
_E4M3 = _Form("*fp8e4nv", {"scales": "*fp32"}, {"BITS": 8, "GROUP": 128})
_INT4 = _Form("*i32", {"scales": "*fp32", "zero": "*u8"}, {"BITS": 4, "GROUP": 128, "OFFSET": 16.0})


_SMALL, _LARGE = ("HMMA", "LDGSTS.E.BYPASS.128"), ("HGMMA", "LDGSTS.E.BYPASS.128")


@dataclass(frozen=True)
class _Mixture:
    """Both products for the tokens of a case, and what each takes at most on a Hopper."""

    name: str
    case: Case
    gate_up: tuple[int, int, int]
    """Registers, KiB of shared memory, and instructions in a turn of the loop."""
    down: tuple[int, int, int | None]
    """The same; None: the loop is unrolled whole."""
    sass: tuple[str, ...]
    form: _Form = _Form("*bf16", {}, {"BITS": 0})


def _at(case: Case, tokens: int) -> Case:
    return replace(case, tokens=tokens)


_DECODE = _Mixture("decode", _at(_QWEN3_30B, 64), (72, 56, 104), (64, 32, None), _SMALL)
_MIXTURES = (
    _DECODE,
    _Mixture("mixed", _at(_QWEN3_30B, 1024), (136, 72, 152), (136, 72, 136), _LARGE),
    _Mixture("prefill", _at(_QWEN3_30B, 8192), (184, 144, 154), (232, 144, 152), _LARGE),
    _Mixture("gpt_oss_decode", _at(_GPT_OSS_20B, 64), (72, 56, 104), (64, 32, 80), _SMALL),
    _Mixture("gpt_oss_prefill", _at(_GPT_OSS_20B, 8192), (255, 144, 156), (255, 144, 160), _LARGE),
    _Mixture("mxfp4_decode", _at(_GPT_OSS_20B, 64), (96, 24, 900), (80, 16, 470), ("HMMA",), _MXFP4),
    _Mixture("mxfp4_prefill", _at(_GPT_OSS_20B, 8192), (255, 100, 770), (255, 100, 760), ("HGMMA",), _MXFP4),
    _Mixture("e4m3_decode", _at(_QWEN3_30B, 64), (72, 24, 225), (72, 24, 220), ("HMMA",), _E4M3),
    _Mixture("e4m3_prefill", _at(_QWEN3_30B, 8192), (255, 116, 365), (144, 84, 225), ("HGMMA",), _E4M3),
    _Mixture("int4_decode", _at(_QWEN3_30B, 64), (104, 16, 275), (104, 16, 280), ("HMMA",), _INT4),
    _Mixture("int4_prefill", _at(_QWEN3_30B, 8192), (255, 100, 480), (208, 76, 285), ("HGMMA",), _INT4),
)
_SUM = Build(
    "moe_sum",
    moe_sum_kernel,
    {"output": "*bf16", "routed": "*bf16", "experts": "*i64"},
    {"NUM_EXPERTS": 128, "TOP_K": 8, "HIDDEN": 2048, "BLOCK": 1024},
    max_registers=48,
    max_shared=0,
    sass=("LDG.E.128",),
)


def builds_for(shared_memory: int) -> list[Build]:
    """The kernels as they are launched where one program may have so much shared memory; limits are Hopper's."""
    builds = [build(each, shared_memory) for each in _MIXTURES for build in (_gate_up_build, _down_build)]
    return [*builds, _gate_up_build(replace(_DECODE, name="for_adapters_decode"), shared_memory, activate=False), _SUM]


def _gate_up_build(mixture: _Mixture, shared_memory: int, *, activate: bool = True) -> Build:
    case, tiles = mixture.case, _tiles(mixture, shared_memory)
    limits = {"LIMIT": 7.0, "ALPHA": 1.702} if case.gpt_oss else {"LIMIT": None, "ALPHA": 1.0}
    own = {"TOP_K": case.top_k, "BLOCK_OUT": tiles.gate_up_columns, "ACTIVATE": activate, "UP_OFFSET": 1.0, **limits}
    tensors = {**_GATE_UP, "gate_up": mixture.form.weight}
    return _build(f"moe_gate_up_{mixture.name}", moe_gate_up_kernel, tensors, own, mixture, tiles, mixture.gate_up)


def _down_build(mixture: _Mixture, shared_memory: int) -> Build:
    tiles, tensors = _tiles(mixture, shared_memory), {**_DOWN, "down": mixture.form.weight}
    own = {"BLOCK_OUT": tiles.down_columns}
    return _build(f"moe_down_{mixture.name}", moe_down_kernel, tensors, own, mixture, tiles, mixture.down)


def _tiles(mixture: _Mixture, shared_memory: int) -> Tiles:
    case, quantized = mixture.case, mixture.form.constants["BITS"] > 0
    return tiles_for(case.tokens * case.top_k, case.experts, quantized=quantized, shared_memory=shared_memory)


def _build(
    name: str,
    kernel: Any,
    tensors: Mapping[str, str],
    constants: Mapping[str, Any],
    mixture: _Mixture,
    tiles: Tiles,
    most: tuple[int, int, int | None],
) -> Build:
    """One product's build. `tensors` and `constants` are those that only this product has; `most` as in `_Mixture`."""
    case, form, (registers, shared, instructions) = mixture.case, mixture.form, most
    sizes = {"HIDDEN": case.hidden, "INTERMEDIATE": case.intermediate, "TILE_ROWS": tiles.rows, **_SIZES}
    codes = dict.fromkeys(_OF_CODES - form.tensors.keys()) | _NO_CODES | form.constants
    return Build(
        name,
        kernel,
        {**tensors, **({"bias": "*bf16"} if case.gpt_oss else {}), **form.tensors},
        {**constants, **sizes, **codes, **({} if case.gpt_oss else {"bias": None})},
        tiles.warps,
        tiles.stages,
        registers,
        shared << 10,
        mixture.sass,
        {} if instructions is None else {"all": instructions},
    )


BUILDS = builds_for(HOPPER_SHARED_MEMORY)
