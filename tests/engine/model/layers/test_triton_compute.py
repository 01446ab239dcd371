"""Layers with Triton kernels: the number of launches, and the same results as PyTorch's on all ranks (interpreted)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import rank_logits
import torch
from checkpoints import reference_model, save
from decoders import make_decoder
from rank_logits import logits_of
from recorded import Operation
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.jit import JITFunction

from octavo_engine.attention.backend import StepInputs
from octavo_engine.attention.context import StepContext
from octavo_engine.attention.rope import Rope
from octavo_engine.attention.triton import TritonAttention
from octavo_engine.kernels.experts import moe_autotune
from octavo_engine.kernels.experts.moe import mixture_of_experts
from octavo_engine.model import decoder as decoder_module
from octavo_engine.model.checkpoint.names import LLAMA_NAMES
from octavo_engine.model.checkpoint.tensors import Span, unsharded
from octavo_engine.model.configuration.read_spec import read_spec
from octavo_engine.model.decoder import Decoder
from octavo_engine.model.layers.linear import Linear
from octavo_engine.model.layers.operations.choose_compute import choose_compute
from octavo_engine.model.layers.operations.compute import Compute
from octavo_engine.model.layers.operations.device_support import DeviceSupport
from octavo_engine.model.layers.operations.products import torch_logits
from octavo_engine.model.layers.operations.triton_compute import TritonPointwise, triton_compute
from octavo_engine.model.layers.options import LayerOptions
from octavo_engine.model.layers.residual import summed
from octavo_engine.model.loader import load_model
from octavo_engine.model.quantization import fp8
from octavo_engine.model.quantization.fp8 import FP8Scheme
from octavo_engine.model.quantization.int8 import INT8
from octavo_engine.model.quantization.linear_method import LinearMethod
from octavo_engine.model.quantization.select import ONLINE
from octavo_engine.model.source import ModelFiles
from octavo_engine.model.tensor_parallel.collectives import Collectives
from octavo_engine.model.tensor_parallel.shard import Shard

CPU = torch.device("cpu")
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_heads": 4, "num_kv_heads": 2, "head_dim": 16}


def test_gpus_compute_by_triton_and_cpus_only_where_it_interprets(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = make_decoder(torch.float32, **SIZES).spec
    assert isinstance(choose_compute(spec, torch.bfloat16, torch.device("cuda")).pointwise, TritonPointwise)
    assert not isinstance(choose_compute(spec, torch.bfloat16, CPU).pointwise, TritonPointwise)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert isinstance(choose_compute(spec, torch.float32, CPU).pointwise, TritonPointwise)


class Launches(TorchDispatchMode):
    """Notes the kernels that are launched, PyTorch's and Triton's; the latter do nothing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.names: list[str] = []
        monkeypatch.setattr(JITFunction, "run", lambda kernel, *_, **__: self.names.append(kernel.__name__))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        if name != "empty" and not Operation(func, args, kwargs or {}, result).is_view:
            self.names.append(name)
        return result


def launches(scheme: FP8Scheme | None, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the kernels that a step launches for two layers."""
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_heads": 2, "num_kv_heads": 1, "head_dim": 128}
    spec = make_decoder(torch.float32, scheme, **sizes).spec
    monkeypatch.setattr(decoder_module, "choose_compute", lambda *_: triton_compute())
    decoder, backend = Decoder(spec, dtype=torch.bfloat16, device=CPU), TritonAttention()
    for linear in decoder.modules():
        if isinstance(linear, Linear) and scheme is not None:
            linear.weights.in_8_bits, linear.weights.quantized = True, None  # as on a GPU that multiplies in FP8
    one, zero = torch.ones(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int64)
    inputs = StepInputs(zero, zero, torch.tensor([0, 1]).int(), one, (one[None],), (zero,), zero, (1,), (1,))
    caches = backend.allocate(spec.kv_groups[0], 2, 16, torch.bfloat16, CPU)
    context = StepContext(backend, caches, (backend.prepare(inputs, 0, 16, None),), (0, 0))
    x, rope = torch.ones(1, 128, dtype=torch.bfloat16), Rope(torch.ones(1, 1, 64), torch.ones(1, 1, 64))
    with torch.no_grad(), Launches(monkeypatch) as launched:
        decoder.compute.run(decoder.decoder_layers, x, [rope, rope], context)
    return launched.names


def test_a_layer_is_eight_launches_beside_attentions(monkeypatch: pytest.MonkeyPatch) -> None:
    attention = ["rms_norm_kernel", "mm", "write_heads_kernel", "paged_attention_kernel", "addmm_"]
    mlp = ["rms_norm_kernel", "mm", "act_mul_kernel", "addmm_"]
    found = launches(None, monkeypatch)
    assert found.pop(3) == "list_segments_kernel", "once a step: the second layer uses the first one's list"
    assert found == 2 * (attention + mlp)


@pytest.mark.parametrize(
    ("scheme", "product"),
    [
        (FP8Scheme("channel"), "_scaled_mm_v2"),
        (FP8Scheme("tensor", "static"), "_scaled_mm_v2"),
        (FP8Scheme("block"), "block_fp8_matmul_kernel"),
    ],
    ids=["channel", "given scales", "block"],
)
def test_in_fp8_it_is_one_more(scheme: FP8Scheme, product: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Norm and gate quantize, the norm adds what the product before it gave: only attention's result is left."""
    attention = ["rms_norm_kernel", product, "write_heads_kernel", "paged_attention_kernel", "quantize_kernel", product]
    mlp = ["rms_norm_kernel", product, "act_mul_fp8_kernel", product]
    found = launches(scheme, monkeypatch)
    assert [name for name in found if name != "list_segments_kernel"] == [*2 * (attention + mlp), "add"]


@pytest.mark.parametrize(
    ("method", "product", "dequantize"),
    [
        (INT8(online=True), "quantized_linear_kernel", "dequantize_kernel"),
        (ONLINE["int4"].default, "interleaved_linear_kernel", "dequantize_interleaved_kernel"),
    ],
    ids=["int8", "int4"],
)
def test_quantized_weights_are_multiplied_as_they_are_and_dequantized_for_many_tokens(
    method: LinearMethod, product: str, dequantize: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = LayerOptions(Collectives(Shard()), triton_compute(), torch.bfloat16, CPU, LLAMA_NAMES)
    columns, rows = Span(0, 1024, 1024, "columns"), Span(0, 64, 64, "rows")
    linear = Linear(columns, [rows], bias=False, options=options, method=method)
    for values in linear.weights.parameters.values():
        values.fill_(1)
    options.compute.prepare([linear.weights])
    assert linear.scratch_bytes >= 1024 * 64 * 2, "the plan has memory for the dequantized weight"
    with torch.no_grad(), Launches(monkeypatch) as launched:
        for tokens in (1, 64, 65):
            linear(torch.empty(tokens, 1024, dtype=torch.bfloat16))
    split = [product, "sum_kernel"]
    assert launched.names == [*split, *split, dequantize, "mm"]


def test_logits_are_sampled_as_they_are_multiplied(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pass makes them float32, and a graph's product writes them where they are sampled."""
    monkeypatch.setattr(decoder_module, "choose_compute", lambda *_: triton_compute())
    decoder = Decoder(make_decoder(torch.float32, **SIZES).spec, dtype=torch.bfloat16, device=CPU)
    torch.nn.init.normal_(decoder.input.tokens.weight)
    hidden, exact = torch.randn(3, 64).bfloat16(), torch.zeros(3, 300, dtype=torch.float64)
    out = torch.full((3, 300), torch.nan, dtype=decoder.logits_dtype)
    torch.mm(hidden.double(), decoder.head.weight.double().T, out=exact)
    with torch.no_grad(), Launches(monkeypatch) as launched:
        found = [decoder.logits(hidden, out), decoder.logits(hidden)]
    assert launched.names == ["mm", "mm"]
    assert found[0] is out
    for logits in found:
        assert logits.dtype == torch.bfloat16
        torch.testing.assert_close(logits.double(), exact, rtol=2**-8, atol=0.02)


def test_without_triton_logits_are_float32() -> None:
    decoder = make_decoder(torch.float16, **SIZES)
    assert decoder.compute.logits_product is torch_logits
    hidden = torch.randn(3, 64).half()
    out = torch.full((3, 300), torch.nan, dtype=decoder.logits_dtype)
    found = decoder.logits(hidden)
    assert found.dtype == torch.float32
    assert torch.equal(found, decoder.logits(hidden, out))
    torch.testing.assert_close(found, hidden.float() @ decoder.head.weight.float().T, rtol=2**-9, atol=1e-2)


class SecondOfTwo(Collectives):
    """A rank whose other one always has threes."""

    def __init__(self) -> None:
        super().__init__(Shard(1, 2))

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return x + 3


def test_in_fp8_every_rank_adds_its_residual_to_the_sum_of_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fp8, "fp8_linear", lambda x, *_: 2 * x)
    support = DeviceSupport(fp8_products=True)
    options = LayerOptions(SecondOfTwo(), Compute(), torch.bfloat16, CPU, LLAMA_NAMES, support)
    linear = Linear(
        unsharded(16), (unsharded(16),), bias=False, options=options, method=ONLINE["fp8"].default, summed=True
    )
    x, residual = torch.randn(2, 4, 16)
    stream = linear.add_to(residual, x)
    assert torch.equal(summed(stream), residual + (2 * x + 3))


def test_two_ranks_give_the_logits_of_one_by_pytorch(tmp_path: Path) -> None:
    """The first rank alone adds residual and biases, though a linear writes its sum into the residual."""
    changes = {"attention_bias": True, "mlp_bias": True, "num_hidden_layers": 1}
    checkpoint = save(reference_model(**changes), tmp_path / "biases")
    files = ModelFiles("test", directory=checkpoint)
    expected = logits_of(load_model(files, read_spec(files), CPU, torch.float32, lambda *_: None))
    script = [sys.executable, rank_logits.__file__]
    processes = [
        subprocess.Popen(
            [*script, str(rank), "2", str(tmp_path), str(checkpoint)],
            env={**os.environ, "TRITON_INTERPRET": "1"},
        )
        for rank in range(2)
    ]
    assert [process.wait(400) for process in processes] == [0, 0]
    torch.testing.assert_close(torch.load(tmp_path / "biases.pt"), expected, rtol=1e-4, atol=1e-4)


def faster_where_theirs_fails(error: Exception, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The choice on something that says it is a GPU's: nothing is computed on it."""
    times = iter([2.0, error])

    def seconds(*_: object) -> float:
        if isinstance(time := next(times), Exception):
            raise time
        return cast(float, time)

    monkeypatch.setattr(moe_autotune, "_seconds", seconds)
    gate_up = SimpleNamespace(is_cuda=True, dtype=torch.bfloat16, shape=(4, 128, 64), device=CPU)
    experts: Any = SimpleNamespace(gate_up=gate_up, down=SimpleNamespace(shape=(4, 64, 64)))
    return moe_autotune.autotune_mixture_of_experts(experts, top_k=2, tokens=8)


@pytest.mark.parametrize("error", [RuntimeError("not for this GPU"), torch.OutOfMemoryError("no memory")], ids=repr)
def test_a_grouped_product_that_fails_is_not_taken(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    chosen, times = faster_where_theirs_fails(error, monkeypatch)
    assert (chosen, times) == (mixture_of_experts, {"mixture_of_experts": 2.0})
    assert f"grouped product is not used: {error}" in caplog.text


def test_a_device_that_a_grouped_product_broke_is_not_used_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(torch.AcceleratorError):
        faster_where_theirs_fails(torch.AcceleratorError("illegal address"), monkeypatch)
