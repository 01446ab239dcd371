"""Checks of a whole decoder by the Triton kernels against the same in PyTorch: in float32, and with FP8 products."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from unittest import mock

import torch
from torch import Tensor

from octavo_engine.attention.backend import AttentionBackend, StepInputs
from octavo_engine.attention.context import StepContext
from octavo_engine.attention.torch_reference import TorchAttention
from octavo_engine.attention.triton import TritonAttention
from octavo_engine.kernels.fp8_activations import Scaling
from octavo_engine.kernels.norm import rms_norm
from octavo_engine.kernels.norm_weights import NormWeights
from octavo_engine.model import decoder as decoder_module
from octavo_engine.model.decoder import Decoder
from octavo_engine.model.layers.linear import Linear
from octavo_engine.model.layers.operations.compute import Compute
from octavo_engine.model.layers.operations.device_support import device_support
from octavo_engine.model.layers.operations.pointwise import TorchPointwise
from octavo_engine.model.layers.operations.products import torch_product
from octavo_engine.model.layers.operations.triton_compute import triton_compute
from octavo_engine.model.layers.residual import ResidualStream, summed
from octavo_engine.model.quantization.e4m3 import FP8
from octavo_engine.model.quantization.fp8 import FP8Scheme
from octavo_engine.model.quantization.module_rules import Quantization
from octavo_engine.model.spec import (
    AttentionSpec,
    HeadSpec,
    LayerNorms,
    LayerSpec,
    MLPSpec,
    ModelSpec,
    MoESpec,
    NormSpec,
    QKNormSpec,
    RopeSpec,
    RouterSpec,
)
from tests.kernels.check import Build, Check
from tests.kernels.poison import half_precision
from tests.kernels.rounding import to_fp8

_BLOCK_SIZE = 16
_STEPS = (((0, 16), (0, 2)), ((16, 17), (2, 5)), ((17, 18), (5, 6)))
"""For each step the tokens of both sequences that it computes: prompts, a decode with a chunk, decodes."""


def _spec(
    *,
    qk_norm: bool,
    bias: bool,
    heads: int,
    kv_heads: int,
    head_dim: int,
    act: str = "silu",
    hidden: int = 72,
    inner: int = 100,
) -> ModelSpec:
    norm = NormSpec(1e-5)
    attention = AttentionSpec(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        scale=head_dim**-0.5,
        rope=RopeSpec(10000.0),
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=QKNormSpec(norm) if qk_norm else None,
    )
    layer = LayerSpec(
        mixer=attention,
        feed_forward=MLPSpec(intermediate_size=inner, activation=act, bias=bias, output_bias=bias),
        norms=LayerNorms(before_mixer=norm, before_feed_forward=norm),
    )
    return ModelSpec(
        architecture="LlamaForCausalLM",
        hidden_size=hidden,
        vocab_size=67,
        max_position=512,
        dtype=torch.float32,
        eos_token_ids=(),
        layers=(layer, layer),
        norm=norm,
        head=HeadSpec(tied=True),
    )


def _decoder(
    spec: ModelSpec,
    compute: Callable[[], Compute],
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    *,
    in_8_bits: bool = False,
) -> Decoder:
    """Return a decoder with random weights of a fixed seed."""
    built = compute()
    support = device_support(built, device, fp8_products=in_8_bits)
    with mock.patch.object(decoder_module, "choose_compute", lambda *_: built):
        decoder = Decoder(spec, dtype=dtype, device=device, support=support)
    generator = torch.Generator().manual_seed(3)
    for name, parameter in decoder.named_parameters():
        by_block = spec.quantization is not None and spec.quantization.default == FP8Scheme("block")
        if name.endswith("input_scale"):
            parameter.fill_(_INPUT_SCALE)
        elif name.endswith("scale"):
            # Of blocks the same ones, whether products in 8 bits need one each or others one for each row.
            rows = len(decoder.get_parameter(f"{name.removesuffix('scale')}weight")) // (128 if by_block else 1)
            scales = torch.randn(rows, parameter.shape[1], generator=generator).abs() + 0.5
            parameter.copy_(scales.repeat_interleave(len(parameter) // rows, dim=0) * 0.0005)
        else:
            weights = torch.randn(parameter.shape, generator=generator)
            if parameter.dtype == FP8:
                parameter.copy_(weights * 60)
            else:
                parameter.copy_(weights * 0.2 if parameter.dim() > 1 else weights * 0.1 + 1)
    for module in decoder.modules():
        if isinstance(module, Linear):
            module.weights.in_8_bits = in_8_bits
    return decoder


def _inputs(step: tuple[tuple[int, int], ...], groups: int, device: torch.device) -> StepInputs:
    tables = torch.tensor([[3, 1], [2, 4]], dtype=torch.int32)
    positions = [position for first, end in step for position in range(first, end)]
    owners = [sequence for sequence, (first, end) in enumerate(step) for _ in range(first, end)]
    blocks = [int(tables[s, p // _BLOCK_SIZE]) for s, p in zip(owners, positions, strict=True)]
    slots = [block * _BLOCK_SIZE + p % _BLOCK_SIZE for block, p in zip(blocks, positions, strict=True)]
    lens = tuple(end - first for first, end in step)
    ids = [(7 * s + 11 * p + p * p) % 67 for s, p in zip(owners, positions, strict=True)]
    return StepInputs(
        token_ids=torch.tensor(ids, dtype=torch.int32, device=device),
        positions=torch.tensor(positions, device=device),
        cu_query_lens=torch.tensor([0, *lens], device=device).cumsum(0).int(),
        context_lens=torch.tensor([end for _, end in step], dtype=torch.int32, device=device),
        block_tables=(tables.to(device),) * groups,
        slot_mapping=(torch.tensor(slots, device=device),) * groups,
        token_indices=torch.arange(len(positions), device=device),
        query_lens_host=lens,
        context_lens_host=tuple(end for _, end in step),
    )


@torch.inference_mode()
def _logits(decoder: Decoder, backend: AttentionBackend, device: torch.device) -> Tensor:
    """Return the logits of all tokens of all steps; the cache holds NaN before."""
    groups, dtype = decoder.spec.kv_groups, decoder.dtype
    caches = {}
    for group in groups:
        caches |= backend.allocate(group, 5, _BLOCK_SIZE, dtype, device)
    for cache in caches.values():
        cache.key.fill_(torch.nan)
        cache.value.fill_(torch.nan)
    group_of_layer = tuple(
        next(index for index, group in enumerate(groups) if layer in group.layers) for layer in (0, 1)
    )
    found = []
    for step in _STEPS:
        inputs = _inputs(step, len(groups), device)
        metadata = tuple(
            backend.prepare(inputs, index, _BLOCK_SIZE, group.window) for index, group in enumerate(groups)
        )
        hidden = decoder(inputs, StepContext(backend, caches, metadata, group_of_layer))
        found.append(decoder.logits(hidden))
    return torch.cat(found)


def _same_logits(spec: ModelSpec, device: torch.device) -> None:
    expected = _logits(_decoder(spec, Compute, device), TorchAttention(), device)
    found = _logits(_decoder(spec, triton_compute, device), TritonAttention(), device)
    assert bool(found.isfinite().all())
    assert float((found - expected).abs().max()) <= 1e-5 * float(expected.abs().max())


def _rounding(scaling: Scaling) -> Compute:
    """Linears see their input as e4m3 holds it, in PyTorch and by arithmetic alone."""

    def product(x: Tensor, weight: Tensor, bias: Tensor | None, addend: Tensor | None) -> Tensor:
        wide = x.double().view(len(x), -1, scaling.group or x.shape[1])
        scales = wide.abs().amax(-1, keepdim=True) / 448 if scaling.given is None else scaling.given.double()
        return torch_product((to_fp8(wide / scales) * scales).view_as(x).to(x.dtype), weight, bias, addend)

    return Compute(product=product)


class _UnfusedPointwise(TorchPointwise):
    """Linears quantize for themselves, and sums are PyTorch's."""

    def norm(self, stream: ResidualStream, norm: NormWeights, scaling: Scaling | None) -> tuple[Tensor, Tensor]:
        """Normalise by our kernel, as the fused one does: PyTorch adds squares in another order."""
        x = summed(stream)
        return rms_norm(x, norm.weight, norm.eps)[0], x


def _unfused() -> Compute:
    return replace(triton_compute(), pointwise=_UnfusedPointwise())


def _same_logits_in_fp8(spec: ModelSpec, device: torch.device) -> None:
    """To the same bits, fused or not, where nothing is compiled; near to float32 of the same numbers."""
    assert spec.quantization is not None
    scheme, dtype = spec.quantization.default, half_precision(device)
    assert isinstance(scheme, FP8Scheme)
    given = torch.tensor([_INPUT_SCALE], device=device) if scheme.activation == "static" else None
    scaling = Scaling(128 if scheme.granularity == "block" else None, given)
    expected = _logits(_decoder(spec, partial(_rounding, scaling), device), TorchAttention(), device)
    fused, unfused = (
        _logits(_decoder(spec, compute, device, dtype, in_8_bits=True), TritonAttention(), device).float()
        for compute in (triton_compute, _unfused)
    )
    size = float(expected.abs().max())
    for found in (fused, unfused):
        assert bool(found.isfinite().all())
        assert float((found - expected).abs().max()) <= 0.03 * size
        assert float((found - expected).abs().mean()) <= 0.006 * size
    if device.type == "cpu":
        assert torch.equal(fused, unfused)


def _gpt_oss() -> ModelSpec:
    """Return a spec with sinks, YaRN and experts; the first layer has a window."""
    spec = _spec(qk_norm=False, bias=True, heads=2, kv_heads=1, head_dim=16, hidden=64)
    rope = RopeSpec(10000.0, "yarn", 8.0, original_max_position=64, attention_factor=1.2)
    moe = MoESpec(
        num_experts=3,
        top_k=2,
        intermediate_size=48,
        router=RouterSpec(bias=True),
        bias=True,
        limit=0.75,
        alpha=1.702,
    )
    layers = (
        replace(layer, mixer=replace(layer.mixer, sinks=True, rope=rope, window=window), feed_forward=moe)
        for layer, window in zip(spec.layers, (5, None), strict=True)
    )
    return replace(spec, layers=tuple(layers))


_INPUT_SCALE = 0.05
_LLAMA = {"heads": 6, "kv_heads": 2, "head_dim": 16}
_SPECS = {
    "llama": _spec(qk_norm=False, bias=False, **_LLAMA),
    "biases_and_gelu": _spec(qk_norm=False, bias=True, act="gelu_pytorch_tanh", **_LLAMA),
    "qwen3": _spec(qk_norm=True, bias=False, heads=4, kv_heads=2, head_dim=32),
}
_SPECS["gpt_oss"] = _gpt_oss()
_FULL_BLOCKS = _spec(qk_norm=False, bias=True, heads=2, kv_heads=1, head_dim=128, hidden=128, inner=256)
_SCHEMES = {
    "channel": FP8Scheme("channel"),
    "given_scales": FP8Scheme("tensor", "static"),
    "blocks": FP8Scheme("block"),
}
CHECKS = [Check(name, partial(_same_logits, spec)) for name, spec in _SPECS.items()]
CHECKS += [
    Check(f"fp8_{name}", partial(_same_logits_in_fp8, replace(_FULL_BLOCKS, quantization=Quantization(scheme))))
    for name, scheme in _SCHEMES.items()
]
BUILDS: list[Build] = []
