"""All layers in one call of the C kernels give the same bits as one by one."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import pytest
import torch
from c_kernels import kernels, needs_kernels  # noqa: F401
from checkpoints import reference_model, save
from compared_logits import random_tokens
from decoders import WIDE, make_decoder
from loaded import load
from stepper import Sequence, Stepper

from octavo_engine.attention.cpu import CPUAttention
from octavo_engine.kernels.cpu.layers import CPULayers
from octavo_engine.kernels.cpu.library import CPUKernels, cpu_kernels
from octavo_engine.kernels.cpu.pages import LINE, HugePages, use_huge_pages
from octavo_engine.model import decoder as decoder_module
from octavo_engine.model.configuration.read_spec import read_spec
from octavo_engine.model.decoder import Decoder
from octavo_engine.model.layers.operations import fused as fused_module
from octavo_engine.model.layers.operations.choose_compute import kernel_compute
from octavo_engine.model.layers.operations.crossovers import Crossovers
from octavo_engine.model.layers.operations.fused import FusedLayers, kernels_know
from octavo_engine.model.layers.operations.run_layers import one_by_one
from octavo_engine.model.loader import load_model
from octavo_engine.model.lora.slots import LoraSlots, lora_targets
from octavo_engine.model.quantization.fp8 import FP8Scheme
from octavo_engine.model.quantization.module_rules import Quantization, Rule
from octavo_engine.model.quantization.select import ONLINE
from octavo_engine.model.quantization.unquantized import UNQUANTIZED
from octavo_engine.model.source import ModelFiles
from octavo_engine.model.spec import (
    AttentionSpec,
    LayerNorms,
    ModelSpec,
    MoESpec,
    NormSpec,
    QKNormSpec,
    RopeSpec,
    RouterSpec,
)

pytestmark = pytest.mark.usefixtures("several_threads")

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
    with mock.patch.object(
        decoder_module, "choose_compute", lambda spec, *_: kernel_compute(cpu_kernels(), fused=spec)
    ):
        return load(save(model, tmp_path_factory.mktemp("fused")), dtype=torch.bfloat16)


def logits(decoder, step: list[tuple[int, int]], by: CPUKernels | None = None) -> torch.Tensor:
    """`by`: the kernels that attend where layers are computed one by one; None: this CPU's."""
    stepper = Stepper(decoder, backend=CPUAttention(by or cpu_kernels()), num_blocks=200)
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
    del calls[:]
    monkeypatch.setattr(decoder, "compute", replace(decoder.compute, runner=one_by_one))
    assert torch.equal(together, logits(decoder, step))
    assert not calls


@needs_kernels
def test_the_same_bits_with_adapters(decoder, monkeypatch):
    """Each token has its own adapter, or none; they were given their slots after a step without any."""
    step, generator = STEPS["chunks and decodes"], torch.Generator().manual_seed(0)
    alone = logits(decoder, step)
    for linear in decoder.linears():
        monkeypatch.setattr(linear, "lora", None)  # again after this test
    monkeypatch.setattr(decoder, "lora", None)
    lora = LoraSlots(decoder, lora_targets(decoder, torch.device("cpu")), 3, 8)
    for linear in decoder.linears():
        for slot, part in ((slot, part) for slot in (0, 2) for part in range(len(linear.parts))):
            linear.lora.put_a(slot, part, torch.randn(2 + slot, linear.columns.size, generator=generator))
            start = sum(linear.parts[:part])
            b = torch.randn(linear.parts[part], 2 + slot, generator=generator) * 0.1
            linear.lora.put_b(slot, slice(start, start + linear.parts[part]), b)
    forward = Decoder.forward

    def with_slots(self, inputs, attention):
        lora.use([token % 4 - 1 for token in range(len(inputs.token_ids))])
        return forward(self, inputs, attention)

    monkeypatch.setattr(Decoder, "forward", with_slots)
    together = logits(decoder, step)
    assert not torch.equal(together, alone)
    monkeypatch.setattr(decoder, "compute", replace(decoder.compute, runner=one_by_one))
    assert torch.equal(together, logits(decoder, step))


def load_quantized(
    checkpoint: Any, by: CPUKernels, quantization: Quantization, crossovers: Crossovers | None = None
) -> Decoder:
    """The model of `checkpoint`, quantized while it is loaded, in bfloat16 and by one instruction set's kernels."""
    files = ModelFiles("test", directory=checkpoint)
    spec = replace(read_spec(files), quantization=quantization)
    compute = kernel_compute(by, fused=spec, crossovers=crossovers or Crossovers())
    with mock.patch.object(decoder_module, "choose_compute", lambda *_: compute):
        return load_model(files, spec, torch.device("cpu"), torch.bfloat16, lambda *_: None)


MIXED = Quantization(
    ONLINE["int8"].default,
    (
        Rule(method=UNQUANTIZED, names=frozenset({"model.layers.0.mlp.gate_proj", "model.layers.1.self_attn.o_proj"})),
        Rule(method=ONLINE["int4"].default, names=frozenset({"model.layers.2.mlp.down_proj"})),
    ),
)
"""Weights of 8, 4 and 16 bits, and some whose projections differ, which are dequantized."""


@needs_kernels
@pytest.mark.parametrize("quantization", [ONLINE["int8"], ONLINE["int4"], MIXED], ids=["int8", "int4", "mixed"])
def test_the_same_bits_with_codes(kernels, quantization, tmp_path, monkeypatch):  # noqa: F811
    """Codes are multiplied as they are or by tiles here: other weights are dequantized layer by layer."""
    model = reference_model(**SIZES, intermediate_size=192, attention_bias=True, mlp_bias=True)
    decoder = load_quantized(save(model, tmp_path), kernels, quantization)
    calls, called = [], CPULayers.__call__
    monkeypatch.setattr(CPULayers, "__call__", lambda self, *x, **how: (calls.append(1), called(self, *x, **how))[1])
    compute = decoder.compute
    for step in (STEPS["one token"], STEPS["many decodes"][:12], STEPS["chunks and decodes"]):
        del calls[:]
        monkeypatch.setattr(decoder, "compute", compute)
        together = logits(decoder, step, kernels)
        assert calls
        monkeypatch.setattr(decoder, "compute", replace(compute, runner=one_by_one))
        assert torch.equal(together, logits(decoder, step, kernels))


@needs_kernels
def test_codes_that_are_dequantized_for_many_tokens_leave_the_kernels(tmp_path, monkeypatch):
    checkpoint = save(reference_model(**SIZES, intermediate_size=192), tmp_path)
    decoder, alone = load_quantized(checkpoint, cpu_kernels(), ONLINE["int4"], Crossovers(interleaved=128)), []
    monkeypatch.setattr(fused_module, "one_by_one", lambda _, x, *__: (alone.append(len(x)), x)[1])
    for tokens in (1, 128, 129):
        logits(decoder, [(tokens, tokens)])
    assert alone == [129]


@needs_kernels
def test_a_weight_that_no_kernel_knows_leaves_the_kernels(tmp_path, monkeypatch):
    """The weight says which groups of columns the kernels know, as the spec does not."""
    decoder = load_quantized(
        save(reference_model(**SIZES, intermediate_size=192), tmp_path), cpu_kernels(), ONLINE["int4"]
    )
    step = STEPS["one token"]
    known = logits(decoder, step)
    monkeypatch.setattr(CPULayers, "__call__", lambda *_, **__: pytest.fail("fused"))
    cpu_kernels().interleave(decoder.linears()[3].weights.quantized, back=True)
    decoder.linears()[3].weights.quantized = None
    difference = logits(decoder, step) - known
    assert difference.norm() < 0.1 * known.norm()


@needs_kernels
def test_other_activations_are_not_fused(tmp_path, monkeypatch):
    monkeypatch.setattr(FusedLayers, "__call__", lambda *_: pytest.fail("fused"))
    model = reference_model(**SIZES, intermediate_size=192, hidden_act="gelu_pytorch_tanh")
    logits(load(save(model, tmp_path), dtype=torch.bfloat16), [(9, 9)])


@dataclass(frozen=True, kw_only=True)
class LaterAttention(AttentionSpec):
    """A spec with a field that was added after the kernels were written."""

    novelty: float = 0.0


def with_layer(spec: ModelSpec, **changes: Any) -> ModelSpec:
    """`spec` with changes of its second layer, mixer and feed-forward given as changes of what they are."""
    first, layer = spec.layers
    parts = {name: changes.pop(name) for name in ("mixer", "feed_forward") if name in changes}
    inner = {name: replace(getattr(layer, name), **of_part) for name, of_part in parts.items()}
    return replace(spec, layers=(first, replace(layer, **inner, **changes)))


def test_layers_leave_the_kernels_by_a_value_that_these_do_not_know():
    """Whatever the kernels do not list is computed layer by layer, also a field that is added later."""
    spec = make_decoder(torch.bfloat16, **WIDE).spec
    assert kernels_know(spec)
    assert kernels_know(with_layer(spec, mixer={"qkv_bias": True, "output_bias": True, "window": 9}))
    norm = spec.norm
    moe = MoESpec(num_experts=4, top_k=2, intermediate_size=64, router=RouterSpec())
    for change in (
        {"feed_forward": {"activation": "gelu"}},
        {"feed_forward": {"gated": False}},
        {"feed_forward": {"intermediate_size": 512}},
        {"mixer": {"qk_norm": QKNormSpec(norm)}},
        {"mixer": {"sinks": True}},
        {"mixer": {"softcap": 50.0}},
        {"mixer": {"scale": 1.0}},
        {"mixer": {"rope": None}},
        {"mixer": {"rope": RopeSpec(99.0)}},
        {"norms": LayerNorms(after_mixer=norm, after_feed_forward=norm)},
        {"norms": LayerNorms(before_mixer=norm, before_feed_forward=NormSpec(norm.eps, weight_offset=1.0))},
        {"parallel": True},
        {"residual_scale": 0.5},
    ):
        assert not kernels_know(with_layer(spec, **change)), change
    assert not kernels_know(replace(spec, layers=(replace(spec.layers[0], feed_forward=moe),)))
    fp8 = FP8Scheme("channel")
    assert not kernels_know(replace(spec, quantization=Quantization(fp8)))
    assert kernels_know(replace(spec, quantization=MIXED))
    assert not kernels_know(replace(spec, quantization=replace(MIXED, rules=(*MIXED.rules, Rule(method=fp8)))))
    mixer = spec.layers[0].mixer
    fields = {field.name: getattr(mixer, field.name) for field in dataclasses.fields(mixer)}
    assert not kernels_know(replace(spec, layers=(replace(spec.layers[0], mixer=LaterAttention(**fields)),)))


def test_tensors_in_huge_pages_are_zeros_apart_from_each_other():
    pages = HugePages(3 * LINE)
    first, second = pages.zeros((5, 3), torch.bfloat16), pages.zeros((2, 2, 4), torch.float32)
    assert second.data_ptr() - first.data_ptr() == LINE
    first.fill_(1)
    assert not second.any()
    with pytest.raises(RuntimeError):
        pages.zeros((LINE + 1,), torch.uint8)


def test_asking_for_huge_pages_changes_no_content():
    tensor = torch.zeros(5 << 20, dtype=torch.uint8)
    use_huge_pages(tensor)
    assert not tensor.any()
    tensor.fill_(7)
    use_huge_pages(tensor[3:])
    use_huge_pages(tensor[:100])
    assert torch.equal(tensor, torch.full_like(tensor, 7))
