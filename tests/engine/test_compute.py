"""How layers are computed where PyTorch emulates half precision."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from test_cpu_kernels import needs_kernels

from octavo_engine.config import EngineConfig
from octavo_engine.engine.startup import size_engine
from octavo_engine.kernels.cpu.library import cpu_kernels
from octavo_engine.model.decoder import Decoder
from octavo_engine.model.footprint import widening_bytes
from octavo_engine.model.layers import compute
from octavo_engine.model.layers.compute import TorchCompute, WideningCompute, choose_compute, compute_bytes
from octavo_engine.model.source import ModelFiles, resolve_model
from octavo_engine.model.spec import read_spec
from octavo_engine.runner.memory import MemoryNeed

CPU = torch.device("cpu")


@pytest.fixture
def emulating(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU with AVX2 and no more."""
    monkeypatch.setattr(compute, "cpu_kernels", lambda: None)
    monkeypatch.setattr(torch.cpu, "_is_avx2_supported", lambda: True)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)


@pytest.fixture
def files() -> ModelFiles:
    return resolve_model("smollm2", None, lambda *_: None)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("with_bias", [False, True])
def test_many_tokens_are_rounded_once(dtype: torch.dtype, with_bias: bool) -> None:
    x, weight = torch.randn(33, 200).to(dtype), torch.randn(72, 200).to(dtype)
    bias = torch.randn(72).to(dtype) if with_bias else None
    exact = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    error = (WideningCompute().multiply(x, weight, bias).double() - exact).abs()
    half_a_step = exact.abs() * torch.finfo(dtype).eps / 2
    assert bool((error <= half_a_step * 1.001 + 1e-4).all())


def test_few_tokens_read_the_weight_as_it_is() -> None:
    x, weight = torch.randn(8, 64).bfloat16(), torch.randn(32, 64).bfloat16()
    assert torch.equal(WideningCompute().multiply(x, weight, None), F.linear(x, weight))


def test_chosen_where_products_are_emulated(
    emulating: None, files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = read_spec(files)
    assert isinstance(choose_compute(spec, torch.bfloat16, CPU), WideningCompute)
    assert type(choose_compute(spec, torch.float32, CPU)) is TorchCompute
    assert compute_bytes(spec, torch.bfloat16, torch.device("cuda"), 512) == (0, 0)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    assert type(choose_compute(spec, torch.bfloat16, CPU)) is TorchCompute


def test_no_kernels_are_compiled_for_a_decoder_that_computes_nothing(
    files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loader's blueprint, on a machine whose decoder is on a GPU."""
    monkeypatch.setattr(compute, "cpu_kernels", lambda: pytest.fail("kernels asked for"))
    assert type(choose_compute(read_spec(files), torch.bfloat16, torch.device("meta"))) is TorchCompute


@needs_kernels
def test_with_kernels_few_tokens_are_theirs(
    emulating: None, files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = cpu_kernels()
    monkeypatch.setattr(compute, "cpu_kernels", lambda: kernels)
    monkeypatch.setattr(torch.cpu, "_is_avx512_supported", lambda: False)
    chosen = choose_compute(read_spec(files), torch.bfloat16, CPU)
    weight, widened = torch.randn(64, 64).bfloat16(), []
    monkeypatch.setattr(compute, "multiply_wide", lambda *given: widened.append(given) or F.linear(*given))
    for tokens in (1, 64, 65):
        x = torch.randn(tokens, 64).bfloat16()
        exact = F.linear(x.double(), weight.double())
        torch.testing.assert_close(chosen.linear(x, weight).double(), exact, rtol=2**-7, atol=1e-3)
    assert len(widened) == 1
    chosen.gated(torch.randn(65, 64).bfloat16(), weight, None, "gelu")
    assert len(widened) == 2, "another activation does not leave many tokens to emulation"


def planned(files: ModelFiles, dtype: str = "bfloat16") -> MemoryNeed:
    """With one sequence, so that sampling is not what takes most."""
    return size_engine(EngineConfig(model="smollm2", dtype=dtype, max_num_seqs=1), files).plan.need


def test_the_plan_counts_the_widened_weight(
    emulating: None, files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_it = planned(files).step
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    without = planned(files).step
    assert with_it - without == widening_bytes(read_spec(files), EngineConfig(model="smollm2").max_num_batched_tokens)


@needs_kernels
def test_the_plan_counts_what_the_chosen_kernels_take(
    emulating: None, files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With AVX-512 they need no wider weights, though PyTorch would; for AMX there is a second copy."""
    kernels = cpu_kernels()
    monkeypatch.setattr(compute, "cpu_kernels", lambda: kernels)
    monkeypatch.setattr(torch.cpu, "_is_avx512_supported", lambda: False)
    avx2 = planned(files)
    monkeypatch.setattr(torch.cpu, "_is_avx512_supported", lambda: True)
    avx512, half = planned(files), planned(files, "float16")
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    amx, half_by_amx = planned(files), planned(files, "float16")
    wider = widening_bytes(read_spec(files), EngineConfig(model="smollm2").max_num_batched_tokens)
    assert avx2.step - avx512.step == wider
    assert half.step - half_by_amx.step == wider, "float16 is PyTorch's to compute"
    assert amx.step == avx512.step
    matrices = Decoder(read_spec(files), dtype=torch.bfloat16, device=torch.device("meta")).matrices()
    assert amx.weights - avx512.weights == sum(matrix.nbytes for matrix in matrices)
