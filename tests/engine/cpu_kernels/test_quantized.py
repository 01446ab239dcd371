"""Weights of 4 and 8 bits on CPUs: the C kernels against the same numbers in float64, and the choice of a path."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from c_kernels import FLAGS, LEVELS, REASON, kernels_for, lost_in_8_bits, needs_kernels, random
from checkpoints import reference_model, save
from loaded import linears, load
from rank_logits import logits_of

from octavo_engine.kernels.cpu import build, library
from octavo_engine.kernels.cpu.library import CPUKernels, cpu_kernels
from octavo_engine.kernels.cpu.quantized import QuantizedPart, QuantizedWeight
from octavo_engine.model.layers.operations.crossovers import Crossovers
from octavo_engine.model.layers.operations.products import KernelQuantizedProduct, torch_product

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
pytestmark = pytest.mark.usefixtures("several_threads")

VNNI = "avx_vnni"
OF_CODES = ("quantized_linear", "interleave", "dequantize", "dequantize_rows")
"""The functions of the C files that multiply codes, which alone are compiled for VNNI."""
WITH_VNNI = [*LEVELS, VNNI] if VNNI in build.LEVELS and FLAGS.issuperset(build.LEVELS[VNNI][0]) else LEVELS


@pytest.fixture(scope="module", params=WITH_VNNI or [pytest.param("none", marks=pytest.mark.skip(REASON))])
def kernels(request: pytest.FixtureRequest) -> CPUKernels:
    if request.param != VNNI:
        return kernels_for(request.param)
    files = [*(build.HERE / f"{name}.c" for name in ("quantized", "integers", "interleave")), *build.HERE.glob("*.h")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "_sources", lambda pattern: sorted(file for file in files if file.match(pattern)))
        patch.setattr(library, "_SIGNATURES", {name: library._SIGNATURES[name] for name in OF_CODES})
        return kernels_for(VNNI)


ROWS = (37, 16)
"""Of the two parts of each weight."""
CASES = {
    "int8": (8, None, 100, {}),
    "int8, long rows": (8, None, 5000, {}),
    "Q8_0": (8, 32, 96, {"scale": torch.float16}),
    "Q6_K's groups": (8, 16, 160, {"offset": 32.0}),
    "gptq of 8 bits": (8, 128, 576, {"zero": True, "offset": 1.0, "unsigned": True}),
    "int4": (4, 32, 576, {"minimum": True, "scale": torch.bfloat16}),
    "int4 with a smaller last group": (4, 32, 48, {"minimum": True, "scale": torch.bfloat16}),
    "Q4_0": (4, 32, 64, {"offset": 8.0, "scale": torch.float16}),
    "awq": (4, 128, 4480, {"zero": True}),
    "Q4_K": (4, 32, 512, {"minimum": True, "supers": True}),
    "Q6_K": (8, 16, 512, {"supers": True}),
    "by row": (4, None, 130, {"offset": 8.0}),
}
"""Bits, columns that share a scale, columns, and what else there is."""


def quantized(case: str, seed: int = 0) -> QuantizedWeight:
    bits, group, columns, options = CASES[case]
    generator = torch.Generator().manual_seed(seed)
    groups = 1 if group is None else -(-columns // group)
    kind = options.get("scale", torch.float32)
    parts = []
    for rows in ROWS:
        codes = torch.randint(0, 256, (rows, columns * bits // 8), generator=generator, dtype=torch.uint8)
        minimum = torch.randn(rows, groups, generator=generator).mul(0.05).to(kind) if options.get("minimum") else None
        zero = torch.randint(0, 16, (rows, groups), generator=generator, dtype=torch.uint8)
        scale = torch.randn(rows, groups, generator=generator).mul(0.01).to(kind)  # AutoRound's may be negative
        supers = {}
        if options.get("supers"):
            blocks = columns // 256
            scale = torch.randint(-63, 64, (rows, groups), generator=generator, dtype=torch.int8)
            minimum = None if minimum is None else scale.flip(0)
            names = ["super_scale"] if minimum is None else ["super_scale", "super_minimum"]
            supers = {name: torch.rand(rows, blocks, generator=generator).mul(1e-3).half() for name in names}
        part = QuantizedPart(
            codes=codes if bits == 4 or options.get("unsigned") else codes.view(torch.int8),
            scale=scale,
            bits=bits,
            columns=columns,
            group=group,
            minimum=minimum,
            zero=zero if options.get("zero") else None,
            offset=options.get("offset", 0.0),
            **supers,
        )
        parts.append(part)
    return QuantizedWeight(parts)


def numbers(weight: QuantizedWeight) -> torch.Tensor:
    """Return the codes' values in float64."""
    found = []
    for part in weight.parts:
        codes = part.codes if part.bits == 8 else torch.stack((part.codes & 15, part.codes >> 4), -1).flatten(1)

        def wide(values: torch.Tensor, part: QuantizedPart = part, supers: torch.Tensor | None = None) -> torch.Tensor:
            values = values.double()
            if supers is not None:
                values = values * supers.double().repeat_interleave(values.shape[1] // supers.shape[1], 1)
            return values.double().repeat_interleave(part.group or part.columns, 1)[:, : part.columns]

        value = codes.double() - part.offset - (0 if part.zero is None else wide(part.zero))
        minimum = 0 if part.minimum is None else wide(part.minimum, supers=part.super_minimum)
        found.append(value * wide(part.scale, supers=part.super_scale) + minimum)
    return torch.cat(found)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_products_are_those_of_the_numbers(kernels: CPUKernels, case: str, dtype: torch.dtype) -> None:
    """Within float32's rounding in the sums, and the result's."""
    weight = quantized(case)
    exact = numbers(weight)
    assert weight.known_to_kernels
    rounding = torch.finfo(dtype).eps
    torch.testing.assert_close(kernels.dequantize(weight, dtype).double(), exact, rtol=rounding, atol=1e-6)
    for tokens in (1, 2, 7, 17):
        x = random(tokens, weight.columns, dtype=dtype, seed=tokens)
        bias, addend = random(sum(ROWS), dtype=dtype, seed=1), random(tokens, sum(ROWS), dtype=dtype, seed=2)
        wanted = x.double() @ exact.T
        size = x.double().abs() @ exact.abs().T
        plain = kernels.quantized_linear(x, weight)
        assert bool(((plain.double() - wanted).abs() <= wanted.abs() * rounding + size * 4e-6).all())
        wide = kernels.quantized_linear(x, weight, out=F32)
        assert wide.dtype == F32
        assert bool(((wide.double() - wanted).abs() <= size * 4e-6).all())
        wanted += bias.double() + addend.double()
        added = kernels.quantized_linear(x, weight, bias, addend)
        assert bool(((added.double() - wanted).abs() <= wanted.abs() * rounding + size * 4e-6 + 1e-6).all())


@pytest.mark.parametrize("case", CASES)
def test_single_rows_are_those_of_the_dequantized_weight(kernels: CPUKernels, case: str) -> None:
    """Of both parts and orders; rows that a weight does not have are zeros, as those of other ranks' tokens are."""
    weight = quantized(case)
    there, others = [52, 0, 36, 37, 15, 16, 52], [-1, 53, 2**40]
    for dtype in (F32, BF16):
        kernels.interleave(weight, back=True)
        dequantized = kernels.dequantize(weight, dtype)
        expected = torch.cat((dequantized[there], torch.zeros(len(others), weight.columns, dtype=dtype)))
        for interleaved in (False, True)[: 1 + weight.can_be_interleaved]:
            kernels.interleave(weight, back=not interleaved)
            assert torch.equal(kernels.dequantize_rows(weight, torch.tensor(there + others), dtype), expected)
    assert kernels.dequantize_rows(weight, torch.tensor([], dtype=torch.int64), F32).shape == (0, weight.columns)


INTERLEAVED = [case for case in CASES if quantized(case).can_be_interleaved]


@pytest.mark.parametrize("case", INTERLEAVED)
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_interleaved_codes_are_multiplied_with_inputs_of_8_bits(
    kernels: CPUKernels,
    case: str,
    dtype: torch.dtype,
) -> None:
    """No product is further off than what rounding inputs can do, and all together are within 1.5 %."""
    weight = quantized(case)
    exact, rounding = numbers(weight), torch.finfo(dtype).eps
    kernels.interleave(weight)
    kernels.interleave(weight)  # is done once
    torch.testing.assert_close(kernels.dequantize(weight, dtype).double(), exact, rtol=rounding, atol=1e-6)
    for tokens in (1, 3, 4, 16, 37):
        x = random(tokens, weight.columns, dtype=dtype, seed=tokens)
        bias, addend = random(sum(ROWS), dtype=dtype, seed=1), random(tokens, sum(ROWS), dtype=dtype, seed=2)
        product, bound = x.double() @ exact.T, lost_in_8_bits(x, exact) * 1.001
        wide = kernels.quantized_linear(x, weight, out=F32).double()
        assert bool(((wide - product).abs() <= bound).all())
        assert (wide - product).norm() <= 0.015 * product.norm()
        wanted = product + bias.double() + addend.double()
        added = kernels.quantized_linear(x, weight, bias, addend).double()
        assert bool(((added - wanted).abs() <= bound + wanted.abs() * rounding + 1e-6).all())


def test_interleaved_products_of_whole_numbers_are_exact(kernels: CPUKernels) -> None:
    """The largest codes and inputs there are, which would overflow 16 bits."""
    for bits, case in ((4, "Q4_0"), (8, "gptq of 8 bits"), (8, "Q6_K's groups")):
        weight = quantized(case)
        for part in weight.parts:
            part.codes.copy_(torch.full_like(part.codes, -1 if part.codes.dtype == torch.int8 else 255))
            part.codes[::2] = -128 if part.codes.dtype == torch.int8 else 0
            part.scale.fill_(1)
        exact = numbers(weight)
        kernels.interleave(weight)
        x = torch.full((5, weight.columns), 127.0)
        x[1] *= -1
        x[2, 1::2] *= -1
        x[3, ::3] = 11
        found = kernels.quantized_linear(x, weight)
        torch.testing.assert_close(found.double(), x.double() @ exact.T, rtol=1e-6, atol=1e-3 * bits)


def test_only_what_fits_is_interleaved() -> None:
    """Rows of complete groups of inputs, and offsets that are whole numbers."""
    assert set(CASES) - set(INTERLEAVED) == {
        "int8", "int8, long rows", "int4 with a smaller last group", "by row"
    }  # fmt: skip
    (part, _) = quantized("Q4_0").parts
    assert not replace(part, offset=7.5).can_be_interleaved


def test_a_weight_that_is_put_back_has_its_own_bytes(kernels: CPUKernels) -> None:
    for case in INTERLEAVED:
        weight, kept = quantized(case), quantized(case)
        kernels.interleave(weight)
        assert not torch.equal(weight.parts[0].codes, kept.parts[0].codes)
        kernels.interleave(weight, back=True)
        for part, other in zip(weight.parts, kept.parts, strict=True):
            for name in ("codes", "scale", "minimum", "zero", "super_scale", "super_minimum"):
                found, wanted = getattr(part, name), getattr(other, name)
                assert found is wanted is None or torch.equal(found, wanted), name


@contextmanager
def little_memory(headroom: int) -> Iterator[None]:
    """Let this process map no more than `headroom` bytes above what it has now."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + headroom, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def test_a_lack_of_memory_for_a_tile_is_an_error(kernels: CPUKernels) -> None:
    columns = 1 << 23  # a tile of such rows has 80 MiB
    codes = torch.zeros(1, columns // 2, dtype=torch.uint8)
    part = QuantizedPart(codes=codes, scale=torch.ones(1, columns // 32).half(), bits=4, columns=columns, group=32)
    weight = QuantizedWeight([part])
    with little_memory(32 << 20), pytest.raises(RuntimeError, match="memory"):
        kernels.interleave(weight)
    assert not weight.interleaved
    kernels.interleave(weight)
    with little_memory(64 << 20), pytest.raises(RuntimeError, match="memory"):
        kernels.dequantize_rows(weight, torch.tensor([0]), torch.bfloat16)


def test_unsigned_codes_of_8_bits_with_a_minimum_are_left_to_pytorch() -> None:
    (part, _) = quantized("int8").parts
    assert QuantizedWeight([replace(part, codes=part.codes.view(torch.uint8))]).known_to_kernels
    unsigned = replace(part, codes=part.codes.view(torch.uint8), minimum=part.scale)
    assert not QuantizedWeight([unsigned]).known_to_kernels


def test_a_token_does_not_depend_on_its_company(kernels: CPUKernels) -> None:
    """Also where all tokens' inputs do not stay in a core's cache, so that some are multiplied after others."""
    weight, x = quantized("int4"), random(350, 576, dtype=BF16, seed=0)
    for interleaved in (False, True):
        if interleaved:
            kernels.interleave(weight)
        together = kernels.quantized_linear(x, weight)
        for first in (0, 3, 19, 281, 349):
            assert torch.equal(kernels.quantized_linear(x[first : first + 1], weight), together[first : first + 1])


@pytest.mark.parametrize("case", ["Q8_0", "Q6_K's groups", "awq", "int4"])
def test_inputs_of_all_sizes_are_multiplied(kernels: CPUKernels, case: str) -> None:
    """The loss in 8 bits depends on the 32 inputs that share a scale alone."""
    weight = quantized(case)
    exact, columns = numbers(weight), weight.columns
    sizes = random(9, -(-columns // 32), dtype=F32, seed=2).mul(9).repeat_interleave(32, 1)[:, :columns]
    x = (random(9, columns, dtype=F32, seed=0) * 10 ** (sizes + random(9, columns, dtype=F32, seed=1))).to(BF16)
    x[3], x[4, :32], x[5] = 0, 0, x[5] * 1e-36
    kernels.interleave(weight)
    wanted = x.double() @ exact.T
    found = kernels.quantized_linear(x, weight).double()
    lost = lost_in_8_bits(x, exact) * 1.001
    assert bool(((found - wanted).abs() <= wanted.abs() * torch.finfo(BF16).eps + lost).all())


@pytest.mark.parametrize("case", ["int8", "Q6_K's groups", "int4"])
@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_what_is_not_finite_stays_so_for_its_token_alone(kernels: CPUKernels, case: str, value: float) -> None:
    weight = quantized(case)
    for interleaved in [False, True] if weight.can_be_interleaved else [False]:
        if interleaved:
            kernels.interleave(weight)
        x = random(4, weight.columns, dtype=BF16, seed=0)
        others = kernels.quantized_linear(x, weight)
        x[2, 5] = value
        found = kernels.quantized_linear(x, weight)
        assert not bool(found[2].isfinite().any())
        assert torch.equal(found[[0, 1, 3]], others[[0, 1, 3]])


@pytest.mark.parametrize(
    ("crossovers", "interleaved", "most"),
    [(Crossovers(16, 128), False, 16), (Crossovers(16, 128), True, 128), (Crossovers(0, None), False, 0)],
)
def test_whether_codes_are_multiplied_follows_from_their_order_and_tokens(crossovers, interleaved, most) -> None:
    counts = [tokens for tokens in range(1, 999) if crossovers.multiplies_codes(tokens, interleaved=interleaved)]
    assert counts == list(range(1, most + 1))
    assert Crossovers(None, None).multiplies_codes(999, interleaved=interleaved)


def test_codes_that_are_not_multiplied_are_dequantized(kernels: CPUKernels) -> None:
    """And what no kernel knows is left to the method."""
    weight, exact = quantized("int4"), numbers(quantized("int4"))
    for interleaved, crossovers in ((False, Crossovers(16)), (True, Crossovers()), (True, Crossovers(interleaved=128))):
        if interleaved:
            kernels.interleave(weight)
        product = KernelQuantizedProduct(kernels, crossovers, torch_product)
        for tokens in (1, 130):
            x = random(tokens, 576, dtype=BF16, seed=tokens)
            found = product(x, weight, None, None)
            torch.testing.assert_close(found.double(), x.double() @ exact.T, rtol=0.02, atol=0.1)
        assert product.knows(weight, BF16)
        assert not product.knows(weight, F16)
    narrow = QuantizedWeight(
        [QuantizedPart(codes=torch.zeros(4, 24).byte(), scale=torch.ones(4, 3), bits=4, columns=48, group=16)]
    )
    assert not product.knows(narrow, BF16)


@needs_kernels
@pytest.mark.parametrize("name", ["int8", "int4"])
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_a_decoder_multiplies_its_codes(name, dtype, tmp_path: Path, monkeypatch) -> None:
    """In float32 as exactly as the dequantized weight; in bfloat16 with inputs of 8 bits, 1.9 times as far off."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 2, "num_key_value_heads": 1}
    path = save(reference_model(**sizes), tmp_path)
    decoder, exact = load(path, name, dtype=dtype), load(path, name)
    for linear in linears(exact):
        linear.weights.quantized = None
    wanted = logits_of(exact)
    with monkeypatch.context() as patched:
        patched.setattr(type(linears(decoder)[0].method), "dequantized", None)
        found = (logits_of(decoder) - wanted).abs().mean()
    assert all(linear.weights.quantized.interleaved == (dtype == BF16) for linear in linears(decoder))
    for linear in linears(decoder):
        cpu_kernels().interleave(linear.weights.quantized, back=True)
        linear.weights.quantized = None
    rounded = (logits_of(decoder) - wanted).abs().mean()
    assert found <= (2.5 * rounded if dtype == BF16 else 1.2 * rounded + 1e-5)
