"""The choice of a compute path for each CPU, and its products where PyTorch emulates half precision."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from c_kernels import needs_kernels

from octavo_engine.config import EngineConfig
from octavo_engine.engine.startup.resolved_config import make_blueprint
from octavo_engine.engine.startup.sizing import size_engine
from octavo_engine.kernels.cpu import build
from octavo_engine.kernels.cpu import features as features_module
from octavo_engine.kernels.cpu.features import CPUFeatures, cpu_features
from octavo_engine.kernels.cpu.library import cpu_kernels
from octavo_engine.model import footprint
from octavo_engine.model.configuration.read_spec import read_spec
from octavo_engine.model.decoder import Decoder
from octavo_engine.model.footprint import compute_bytes, widening_bytes
from octavo_engine.model.layers.operations import choose_compute as choosing
from octavo_engine.model.layers.operations.choose_compute import choose_compute, torch_compute
from octavo_engine.model.layers.operations.crossovers import Crossovers
from octavo_engine.model.layers.operations.paths import Path, choose_path
from octavo_engine.model.layers.operations.products import torch_product, wide_product
from octavo_engine.model.source import ModelFiles, resolve_model
from octavo_engine.model.tensor_parallel.shard import Shard
from octavo_engine.runner.memory.memory_plan import MemoryNeed

pytestmark = pytest.mark.usefixtures("several_threads")

CPU = torch.device("cpu")
NO_X86 = CPUFeatures()
AVX2 = CPUFeatures(avx2=True)
AVX512 = CPUFeatures(avx2=True, avx512=True)
AVX512_BF16 = CPUFeatures(avx2=True, avx512=True, avx512_bf16=True)
AMX = CPUFeatures(avx2=True, avx512=True, avx512_bf16=True, amx=True)
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


@pytest.mark.parametrize(
    ("features", "dtype", "with_kernels", "without"),
    [
        (NO_X86, BF16, "kernels and float32", "torch"),
        (AVX2, BF16, "kernels", "torch in float32"),
        (AVX2, F16, "torch in float32", "torch in float32"),
        (AVX2, F32, "kernels", "torch"),
        (AVX512, BF16, "kernels", "torch in float32"),
        (AVX512_BF16, BF16, "kernels", "torch"),
        (AVX512_BF16, F16, "torch", "torch"),
        (AVX512_BF16, F32, "kernels", "torch"),
        (AMX, BF16, "kernels", "torch"),
        (AMX, F16, "torch", "torch"),
        (AMX, F32, "kernels", "torch"),
    ],
)
def test_the_path_follows_from_features_and_dtype(
    features: CPUFeatures, dtype: torch.dtype, with_kernels: Path, without: Path
) -> None:
    assert choose_path(features, dtype, has_kernels=True) == with_kernels
    assert choose_path(features, dtype, has_kernels=False) == without
    assert choose_path(CPUFeatures(), dtype, has_kernels=False) == "torch", "not an x86, or an old one"


def test_features_are_those_that_the_kernels_are_compiled_for() -> None:
    if needs_kernels.args[0]:
        pytest.skip("no kernels can be compiled here")
    kernels, features = build.built_library().name, cpu_features()
    assert features.avx2
    assert ("avx512" in kernels) == features.avx512
    assert ("avx512_bf16" in kernels) == features.avx512_bf16
    assert ("amx" in kernels) == features.amx


@pytest.mark.parametrize("granted", [False, True])
def test_tiles_that_linux_does_not_grant_are_none(granted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sandbox may refuse the request; then an instruction of AMX would end the process."""
    monkeypatch.setattr(features_module, "_may_use_tiles", lambda: granted)
    flags = "flags\t\t: fpu avx2 fma avx512_bf16 amx_tile amx_bf16 amx_int8\n"
    monkeypatch.setattr("pathlib.Path.read_text", lambda _: flags)
    features_module.cpu_flags.cache_clear()
    try:
        assert ("amx_tile" in features_module.cpu_flags(), cpu_features().amx) == (granted, granted)
        assert cpu_features().avx512_bf16
    finally:
        features_module.cpu_flags.cache_clear()


@pytest.fixture
def emulating(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU with AVX2 and no more, on which no kernels can be compiled."""
    monkeypatch.setattr(choosing, "cpu_kernels", lambda: None)
    monkeypatch.setattr(choosing, "cpu_features", lambda: AVX2)
    monkeypatch.setattr(choosing, "measured_crossovers", lambda *_, **__: Crossovers())


@pytest.fixture
def files() -> ModelFiles:
    return resolve_model("smollm2", None, lambda *_: None)


def blueprint_of(files: ModelFiles) -> Decoder:
    return make_blueprint(read_spec(files), torch.bfloat16, Shard())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("with_bias", [False, True])
def test_many_tokens_are_rounded_once(dtype: torch.dtype, with_bias: bool) -> None:
    x, weight = torch.randn(33, 200).to(dtype), torch.randn(72, 200).to(dtype)
    bias = torch.randn(72).to(dtype) if with_bias else None
    exact = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    error = (wide_product(x, weight, bias, None).double() - exact).abs()
    half_a_step = exact.abs() * torch.finfo(dtype).eps / 2
    assert bool((error <= half_a_step * 1.001 + 1e-4).all())


@pytest.mark.parametrize(
    ("narrow", "tokens", "is_widened"), [(8, 8, False), (8, 9, True), (0, 1, True), (None, 9, False)]
)
def test_few_tokens_read_the_weight_as_it_is(
    narrow: int | None, tokens: int, is_widened: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    widened: list[object] = []
    monkeypatch.setattr(choosing, "wide_product", lambda *given: widened.append(given) or torch_product(*given))
    x, weight = torch.randn(tokens, 64).bfloat16(), torch.randn(32, 64).bfloat16()
    product = torch_compute("torch in float32", Crossovers(narrow=narrow)).product
    assert torch.equal(product(x, weight, None, None), F.linear(x, weight))
    assert bool(widened) == is_widened


def test_chosen_where_products_are_emulated(
    emulating: None, files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = read_spec(files)
    x, weight = torch.randn(9, 200).bfloat16(), torch.randn(72, 200).bfloat16()
    product = choose_compute(spec, torch.bfloat16, CPU).product
    assert torch.equal(product(x, weight, None, None), wide_product(x, weight, None, None))
    assert choose_compute(spec, torch.float32, CPU).product is torch_product
    assert compute_bytes(blueprint_of(files), torch.device("cuda"), 512) == 0
    monkeypatch.setattr(choosing, "cpu_features", lambda: AVX512_BF16)
    assert choose_compute(spec, torch.bfloat16, CPU).product is torch_product


def test_no_kernels_are_compiled_for_a_decoder_that_computes_nothing(
    files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loader's blueprint, on a machine whose decoder is on a GPU."""
    monkeypatch.setattr(choosing, "cpu_kernels", lambda: pytest.fail("kernels asked for"))
    assert choose_compute(read_spec(files), torch.bfloat16, torch.device("meta")).product is torch_product


@needs_kernels
def test_with_kernels_few_tokens_are_theirs(
    emulating: None, files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = cpu_kernels()
    monkeypatch.setattr(choosing, "cpu_kernels", lambda: kernels)
    monkeypatch.setattr(choosing, "cpu_features", lambda: NO_X86)
    weight, widened = torch.randn(64, 64).bfloat16(), []
    monkeypatch.setattr(choosing, "wide_product", lambda *given: widened.append(given) or torch_product(*given))
    chosen = choose_compute(read_spec(files), torch.bfloat16, CPU)
    for tokens in (1, 64, 65):
        x = torch.randn(tokens, 64).bfloat16()
        exact = F.linear(x.double(), weight.double())
        torch.testing.assert_close(chosen.linear(x, weight).double(), exact, rtol=2**-7, atol=1e-3)
    assert len(widened) == 1
    chosen.gated(torch.randn(65, 64).bfloat16(), weight, None, "gelu")
    assert len(widened) == 2, "another activation does not leave many tokens to emulation"


def planned(files: ModelFiles, dtype: str = "bfloat16") -> MemoryNeed:
    """Return the plan for one sequence, so that sampling is not the largest part."""
    return size_engine(EngineConfig(model="smollm2", dtype=dtype, max_num_seqs=1), files).plan.need


def test_the_plan_counts_the_widened_weight(
    emulating: None, files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_it = planned(files).step
    monkeypatch.setattr(choosing, "cpu_features", lambda: AVX512_BF16)
    without = planned(files).step
    assert with_it - without == widening_bytes(
        blueprint_of(files), EngineConfig(model="smollm2").max_num_batched_tokens
    )


@needs_kernels
def test_the_plan_counts_what_the_chosen_kernels_take(
    emulating: None, files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels for x86 need no wider weights, though PyTorch would; those for arm64 leave many tokens to it."""
    kernels, plans = cpu_kernels(), {}
    monkeypatch.setattr(choosing, "cpu_kernels", lambda: kernels)
    for features in (NO_X86, AVX2, AVX512, AMX):
        monkeypatch.setattr(choosing, "cpu_features", lambda features=features: features)
        plans[features] = planned(files), planned(files, "float16")
    (arm64, _), (avx2, _), (avx512, half), (amx, half_by_amx) = plans.values()
    wider = widening_bytes(blueprint_of(files), EngineConfig(model="smollm2").max_num_batched_tokens)
    monkeypatch.setattr(choosing, "cpu_features", lambda: AVX512)
    monkeypatch.setattr(footprint, "is_fused", lambda *_: False)
    layer_by_layer = planned(files)
    assert arm64.step - layer_by_layer.step == wider
    assert avx2.step == avx512.step
    assert avx512.step < layer_by_layer.step, "one call of the kernels needs no tensors between operations"
    assert half.step - half_by_amx.step == wider, "float16 is PyTorch's to compute"
    assert (amx.step, amx.weights) == (avx512.step, avx512.weights)
