"""All layers in one call of the C kernels give the bits that the same kernels give one by one."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from checkpoints import reference_model, save
from stepper import Sequence, Stepper
from test_cpu_kernels import FLAGS, needs_kernels
from test_decoder import load, random_tokens

from octavo_engine.attention.cpu import CPUAttention
from octavo_engine.kernels.cpu.library import cpu_kernels
from octavo_engine.kernels.cpu.pages import use_huge_pages
from octavo_engine.model import decoder as decoder_module
from octavo_engine.model.layers import compute
from octavo_engine.model.layers.fused import FusedLayers

SIZES = {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 3}
STEPS = {
    "one token": [(1, 1)],
    "many decodes": [(20 + n, 1) for n in range(20)],
    "chunks and decodes": [(40, 1), (90, 33), (5, 3), (64, 64), (17, 1)],
    "a long chunk": [(300, 290)],
}
"""For each sequence its tokens, and how many of them the step computes."""


@pytest.fixture(scope="module", params=[{}, {"attention_bias": True, "mlp_bias": True}], ids=["plain", "biases"])
def decoder(request, tmp_path_factory):
    """Computed by the C kernels for any number of tokens, also on a CPU where many tokens are left to others."""
    model = reference_model(**SIZES, intermediate_size=192, **request.param)
    with mock.patch.object(decoder_module, "choose_compute", lambda *_: compute.CPUCompute(cpu_kernels())):
        return load(save(model, tmp_path_factory.mktemp("fused")), torch.bfloat16)


def logits(decoder, step: list[tuple[int, int]]) -> torch.Tensor:
    stepper = Stepper(decoder, backend=CPUAttention(cpu_kernels()), num_blocks=200)
    sequences = [Sequence(random_tokens(tokens, seed)) for seed, (tokens, _) in enumerate(step)]
    for sequence, (tokens, now) in zip(sequences, step, strict=True):
        if tokens > now:
            stepper.step([(sequence, tokens - now)])
    return torch.cat(stepper.step([(s, now) for s, (_, now) in zip(sequences, step, strict=True)]))


@needs_kernels
@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_the_same_bits(decoder, step, monkeypatch):
    calls = []
    called = FusedLayers.__call__
    monkeypatch.setattr(FusedLayers, "__call__", lambda self, *step: (calls.append(1), called(self, *step))[1])
    together = logits(decoder, step)
    assert calls
    monkeypatch.setattr(compute, "can_fuse", lambda *_: False)
    del calls[:]
    assert torch.equal(together, logits(decoder, step))
    assert not calls


@needs_kernels
@pytest.mark.skipif("avx512bw" not in FLAGS, reason="oneDNN lays out no bfloat16 without AVX-512")
@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_with_weights_laid_out_for_amx(tmp_path, monkeypatch, step):
    """This CPU may have no AMX: then oneDNN lays them out for what it has, in the same calls."""
    checkpoint = save(reference_model(**SIZES, intermediate_size=192, attention_bias=True, mlp_bias=True), tmp_path)
    plain = load(checkpoint, torch.bfloat16)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    packed = load(checkpoint, torch.bfloat16)
    assert isinstance(packed.compute, compute.AMXCompute)
    difference = logits(packed, step) - logits(plain, step)
    assert difference.abs().mean() < 0.02 * logits(plain, step).abs().mean()


@needs_kernels
def test_other_activations_are_not_fused(tmp_path, monkeypatch):
    monkeypatch.setattr(FusedLayers, "__call__", lambda *_: pytest.fail("fused"))
    model = reference_model(**SIZES, intermediate_size=192, hidden_act="gelu_pytorch_tanh")
    logits(load(save(model, tmp_path), torch.bfloat16), [(9, 9)])


def test_asking_for_huge_pages_changes_no_content():
    tensor = torch.zeros(5 << 20, dtype=torch.uint8)
    use_huge_pages(tensor)
    assert not tensor.any()
    tensor.fill_(7)
    use_huge_pages(tensor[3:])
    use_huge_pages(tensor[:100])
    assert torch.equal(tensor, torch.full_like(tensor, 7))
