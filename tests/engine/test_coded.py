"""Weights of 4 and 8 bits on CPUs: the C kernels against the same numbers in float64, and the choice of a path."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from checkpoints import reference_model, save
from rank_logits import logits_of
from test_compute import AMX, AVX2, AVX512, AVX512_BF16, BF16, F16, F32
from test_cpu_kernels import kernels, needs_kernels  # noqa: F401
from test_fp8 import linears, load

from octavo_engine.kernels.cpu.coded import CodedPart, CodedWeight
from octavo_engine.kernels.cpu.library import CPUKernels
from octavo_engine.model.layers.products import choose_coded_path, kernel_coded_product, torch_product

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
    "by row": (4, None, 130, {"offset": 8.0}),
}
"""Bits, columns that share a scale, columns, and what else there is."""


def coded(case: str, seed: int = 0) -> CodedWeight:
    bits, group, columns, options = CASES[case]
    generator = torch.Generator().manual_seed(seed)
    groups = 1 if group is None else -(-columns // group)
    kind = options.get("scale", torch.float32)
    parts = []
    for rows in ROWS:
        codes = torch.randint(0, 256, (rows, columns * bits // 8), generator=generator, dtype=torch.uint8)
        minimum = torch.randn(rows, groups, generator=generator).mul(0.05).to(kind) if options.get("minimum") else None
        zero = torch.randint(0, 16, (rows, groups), generator=generator, dtype=torch.uint8)
        part = CodedPart(
            codes=codes if bits == 4 or options.get("unsigned") else codes.view(torch.int8),
            scale=torch.rand(rows, groups, generator=generator).mul(0.01).to(kind),
            bits=bits,
            columns=columns,
            group=group,
            minimum=minimum,
            zero=zero if options.get("zero") else None,
            offset=options.get("offset", 0.0),
        )
        parts.append(part)
    return CodedWeight(parts)


def numbers(weight: CodedWeight) -> torch.Tensor:
    """Return the codes' values in float64."""
    found = []
    for part in weight.parts:
        codes = part.codes if part.bits == 8 else torch.stack((part.codes & 15, part.codes >> 4), -1).flatten(1)

        def wide(values: torch.Tensor, part: CodedPart = part) -> torch.Tensor:
            return values.double().repeat_interleave(part.group or part.columns, 1)[:, : part.columns]

        value = codes.double() - part.offset - (0 if part.zero is None else wide(part.zero))
        found.append(value * wide(part.scale) + (0 if part.minimum is None else wide(part.minimum)))
    return torch.cat(found)


def random(*shape: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_products_are_those_of_the_numbers(kernels: CPUKernels, case: str, dtype: torch.dtype) -> None:  # noqa: F811
    """Within float32's rounding in the sums, and the result's; tiles round the weight to bfloat16 besides."""
    weight = coded(case)
    exact = numbers(weight)
    assert weight.known_to_kernels
    rounding = torch.finfo(dtype).eps
    torch.testing.assert_close(kernels.decode(weight, dtype).double(), exact, rtol=rounding, atol=1e-6)
    for tokens in (1, 2, 7, 17):
        x = random(tokens, weight.columns, dtype=dtype, seed=tokens)
        bias, addend = random(sum(ROWS), dtype=dtype, seed=1), random(tokens, sum(ROWS), dtype=dtype, seed=2)
        wanted = x.double() @ exact.T
        size = x.double().abs() @ exact.abs().T
        plain = kernels.coded_linear(x, weight, tiles=False)
        assert bool(((plain.double() - wanted).abs() <= wanted.abs() * rounding + size * 4e-6).all())
        wanted += bias.double() + addend.double()
        added = kernels.coded_linear(x, weight, bias, addend, tiles=False)
        assert bool(((added.double() - wanted).abs() <= wanted.abs() * rounding + size * 4e-6 + 1e-6).all())
        if dtype == BF16:
            tiled = kernels.coded_linear(x, weight, bias, addend, tiles=True)
            assert bool(((tiled.double() - wanted).abs() <= (wanted.abs() + size) * rounding + 1e-6).all())


def test_unsigned_codes_of_8_bits_with_a_minimum_are_left_to_pytorch() -> None:
    (part, _) = coded("int8").parts
    assert CodedWeight([replace(part, codes=part.codes.view(torch.uint8))]).known_to_kernels
    unsigned = replace(part, codes=part.codes.view(torch.uint8), minimum=part.scale)
    assert not CodedWeight([unsigned]).known_to_kernels


def test_a_token_does_not_depend_on_its_company(kernels: CPUKernels) -> None:  # noqa: F811
    weight, x = coded("int4"), random(20, 576, dtype=BF16, seed=0)
    together = kernels.coded_linear(x, weight, tiles=False)
    for first in (0, 3, 19):
        assert torch.equal(kernels.coded_linear(x[first : first + 1], weight, tiles=False), together[first : first + 1])


@pytest.mark.parametrize("case", ["Q8_0", "Q6_K's groups", "int8, long rows", "awq", "int4 with a smaller last group"])
def test_inputs_of_all_sizes_are_multiplied(kernels: CPUKernels, case: str) -> None:  # noqa: F811
    """Where inputs become whole numbers, as with AVX2, the loss is below 1/32768 of the largest of 32 inputs."""
    weight = coded(case)
    exact, columns = numbers(weight), weight.columns
    sizes = random(9, -(-columns // 32), dtype=F32, seed=2).mul(9).repeat_interleave(32, 1)[:, :columns]
    x = (random(9, columns, dtype=F32, seed=0) * 10 ** (sizes + random(9, columns, dtype=F32, seed=1))).to(BF16)
    x[3], x[4, :32], x[5] = 0, 0, x[5] * 1e-36
    wanted, size = x.double() @ exact.T, x.double().abs() @ exact.abs().T
    padded = torch.nn.functional.pad(x.double().abs(), (0, -columns % 32))
    lost = padded.unflatten(1, (-1, 32)).amax(2).repeat_interleave(32, 1)[:, :columns] @ exact.abs().T / 2**15
    found = kernels.coded_linear(x, weight, tiles=False).double()
    assert bool(((found - wanted).abs() <= wanted.abs() * torch.finfo(BF16).eps + size * 8e-6 + lost + 1e-37).all())


@pytest.mark.parametrize("case", ["int8", "Q6_K's groups", "int4"])
@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_what_is_not_finite_stays_so_for_its_token_alone(kernels: CPUKernels, case: str, value: float) -> None:  # noqa: F811
    weight = coded(case)
    x = random(4, weight.columns, dtype=BF16, seed=0)
    others = kernels.coded_linear(x, weight, tiles=False)
    x[2, 5] = value
    found = kernels.coded_linear(x, weight, tiles=False)
    assert not bool(found[2].isfinite().any())
    assert torch.equal(found[[0, 1, 3]], others[[0, 1, 3]])


@pytest.mark.parametrize(
    ("features", "dtype", "paths"),
    [
        (AVX2, BF16, {1: "dots", 64: "dots", 65: "decoded", 512: "decoded"}),
        (AVX2, F32, {1: "dots", 16: "dots", 17: "decoded"}),
        (AVX512, BF16, {16: "dots", 17: "decoded"}),
        (AVX512_BF16, BF16, {1: "dots", 12: "dots", 13: "tiles", 512: "tiles"}),
        (AVX512_BF16, F32, {16: "dots", 17: "decoded"}),
        (AMX, BF16, {16: "dots", 17: "decoded"}),
    ],
)
def test_the_path_follows_from_features_dtype_and_tokens(features, dtype, paths) -> None:
    assert {tokens: choose_coded_path(features, dtype, tokens) for tokens in paths} == paths


def test_each_path_is_taken(kernels: CPUKernels) -> None:  # noqa: F811
    """And what no kernel knows is left to the method."""
    weight, exact = coded("int4"), numbers(coded("int4"))
    for features in (AVX2, AVX512_BF16):
        product = kernel_coded_product(kernels, features, torch_product)
        for tokens in (1, 80):
            x = random(tokens, 576, dtype=BF16, seed=tokens)
            found = product(x, weight, None, None)
            assert found is not None
            torch.testing.assert_close(found.double(), x.double() @ exact.T, rtol=0.02, atol=0.05)
        assert product(random(1, 576, dtype=F16, seed=0), weight, None, None) is None
    narrow = CodedWeight(
        [CodedPart(codes=torch.zeros(4, 24).byte(), scale=torch.ones(4, 3), bits=4, columns=48, group=16)]
    )
    assert product(random(1, 48, dtype=BF16, seed=0), narrow, None, None) is None


@needs_kernels
@pytest.mark.parametrize("name", ["int8", "int4"])
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_a_decoder_multiplies_its_codes_no_less_exactly(name, dtype, tmp_path: Path, monkeypatch) -> None:
    """Its logits are as near to those of the same numbers in float32 as those of the dequantized weight are."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 2, "num_key_value_heads": 1}
    path = save(reference_model(**sizes), tmp_path)
    decoder, exact = load(path, name, dtype=dtype), load(path, name)
    for linear in linears(exact):
        linear.weights.coded = None
    wanted = logits_of(exact)
    with monkeypatch.context() as patched:
        patched.setattr(type(linears(decoder)[0].method), "dequantized", None)
        found = (logits_of(decoder) - wanted).abs().mean()
    for linear in linears(decoder):
        linear.weights.coded = None
    assert found <= 1.2 * (logits_of(decoder) - wanted).abs().mean() + 1e-5
