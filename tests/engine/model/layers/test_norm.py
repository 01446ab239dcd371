"""Norms, activations and logits of the kinds that families have, against transformers' and PyTorch's own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from c_kernels import needs_kernels
from transformers.activations import ACT2FN
from transformers.models.cohere2.modeling_cohere2 import Cohere2LayerNorm
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from octavo_engine.kernels.cpu.library import cpu_kernels
from octavo_engine.kernels.norm_weights import NormWeights
from octavo_engine.model.checkpoint.names import LLAMA_NAMES
from octavo_engine.model.layers.norms.norm import Norm
from octavo_engine.model.layers.operations.activations import ACTIVATIONS
from octavo_engine.model.layers.operations.choose_compute import kernel_compute
from octavo_engine.model.layers.operations.compute import Compute
from octavo_engine.model.layers.options import LayerOptions
from octavo_engine.model.layers.residual import ResidualSum
from octavo_engine.model.spec import NormSpec
from octavo_engine.model.tensor_parallel.collectives import ALONE

SIZE, EPS = 96, 1e-5
DTYPES = [torch.float32, torch.bfloat16]


def make_norm(dtype: torch.dtype, compute: Compute | None = None, **kind) -> Norm:
    options = LayerOptions(ALONE, compute or Compute(), dtype, torch.device("cpu"), LLAMA_NAMES)
    norm = Norm(SIZE, NormSpec(EPS, **kind), options)
    for parameter in norm.parameters():
        parameter.copy_(torch.randn(SIZE) + 0.5)
    return norm


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("theirs", "kind"),
    [
        (LlamaRMSNorm, {}),
        (Gemma2RMSNorm, {"weight_offset": 1.0}),
        (Cohere2LayerNorm, {"kind": "layer"}),
        (torch.nn.LayerNorm, {"kind": "layer", "bias": True}),
    ],
)
def test_the_same_as_transformers(theirs, kind, dtype):
    """Rounded in the same places; LayerNorm is PyTorch's, whose sums are in another order."""
    norm, module = make_norm(dtype, **kind), theirs(SIZE, eps=EPS).to(dtype)
    with torch.no_grad():
        module.weight.copy_(norm.weight)
        if norm.bias is not None:
            module.bias.copy_(norm.bias)
        x = torch.randn(7, SIZE).to(dtype) * 3 + 1
        found, stream = norm(x)
        torch.testing.assert_close(found, module(x), rtol=2**-7 if dtype == torch.bfloat16 else 1e-6, atol=1e-5)
    assert stream is x
    residual = torch.randn(7, SIZE).to(dtype)
    found, stream = norm(ResidualSum(x, residual))
    assert torch.equal(stream, x + residual)
    assert torch.equal(found, norm(stream)[0])


@needs_kernels
@pytest.mark.parametrize("kind", [{"weight_offset": 1.0}, {"kind": "layer"}, {"kind": "layer", "bias": True}], ids=str)
def test_the_c_kernels_leave_norms_that_they_do_not_know_to_pytorch(kind):
    norm = make_norm(torch.bfloat16, kernel_compute(cpu_kernels()), **kind)
    x = torch.randn(7, SIZE).bfloat16()
    assert torch.equal(norm(x)[0], norm.weights.apply(x))


def test_heads_may_have_weights_of_their_own():
    weight, x = torch.randn(4, SIZE), torch.randn(3, 4, SIZE)
    found = NormWeights(weight, EPS, "layer").apply(x)
    torch.testing.assert_close(found, F.layer_norm(x, (SIZE,), eps=EPS) * weight)
    assert not NormWeights(weight, EPS).is_plain_rms, "kernels know one weight for all heads"


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_transformers_of_the_same_name(name):
    x = torch.randn(50, 96) * 4
    torch.testing.assert_close(Compute().activate(x, name), ACT2FN[name](x), rtol=1e-5, atol=1e-6)
    gate_up = torch.cat((x, 2 * x), dim=1)
    torch.testing.assert_close(Compute().gate(gate_up, name), ACT2FN[name](x) * 2 * x, rtol=1e-5, atol=1e-5)


def test_logits_are_scaled_and_then_capped():
    x, weight, out = torch.randn(3, 16), torch.randn(40, 16) * 10, torch.empty(3, 40)
    plain = x @ weight.T
    torch.testing.assert_close(Compute().logits(x, weight, scale=0.25), plain / 4)
    found = Compute().logits(x, weight, out, scale=0.25, softcap=30.0)
    assert found is out
    torch.testing.assert_close(found, 30 * torch.tanh(plain / 4 / 30))
