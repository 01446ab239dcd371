"""A whole decoder by the Triton kernels against the same one in PyTorch, in float32."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from unittest import mock

import torch
from torch import Tensor

from octavo_engine.attention.backend import AttentionBackend, KVGroupSpec, StepInputs
from octavo_engine.attention.context import AttentionContext
from octavo_engine.attention.torch_reference import TorchAttention
from octavo_engine.attention.triton import TritonAttention
from octavo_engine.model import decoder as decoder_module
from octavo_engine.model.decoder import Decoder
from octavo_engine.model.layers.compute import TorchCompute
from octavo_engine.model.layers.triton_compute import TritonCompute
from octavo_engine.model.spec import ModelSpec, RopeSpec
from tests.kernels.check import Build, Check

_BLOCK_SIZE = 16
_STEPS = (((0, 16), (0, 2)), ((16, 17), (2, 5)), ((17, 18), (5, 6)))
"""For each step the tokens of both sequences that it computes: prompts, a decode with a chunk, decodes."""


def _spec(*, qk_norm: bool, bias: bool, heads: int, kv_heads: int, head_dim: int, act: str = "silu") -> ModelSpec:
    return ModelSpec(
        architecture="LlamaForCausalLM",
        num_layers=2,
        hidden_size=72,
        intermediate_size=100,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=67,
        max_position=512,
        rms_norm_eps=1e-5,
        rope=RopeSpec(10000.0),
        tie_word_embeddings=True,
        attention_bias=bias,
        attention_output_bias=bias,
        mlp_bias=bias,
        mlp_output_bias=bias,
        hidden_act=act,
        qk_norm=qk_norm,
        dtype=torch.float32,
        eos_token_ids=(),
        kv_groups=(KVGroupSpec("full", (0, 1), kv_heads, head_dim),),
    )


def _decoder(spec: ModelSpec, compute: Callable[[], TorchCompute], device: torch.device) -> Decoder:
    """With the weights of a seed."""
    with mock.patch.object(decoder_module, "choose_compute", lambda *_: compute()):
        decoder = Decoder(spec, dtype=torch.float32, device=device)
    generator = torch.Generator().manual_seed(3)
    for parameter in decoder.parameters():
        weights = torch.randn(parameter.shape, generator=generator)
        parameter.copy_(weights * 0.2 if parameter.dim() > 1 else weights * 0.1 + 1)
    return decoder


def _inputs(step: tuple[tuple[int, int], ...], device: torch.device) -> StepInputs:
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
        block_tables=(tables.to(device),),
        slot_mapping=(torch.tensor(slots, device=device),),
        sample_rows=torch.arange(len(positions), device=device),
        query_lens_host=lens,
        context_lens_host=tuple(end for _, end in step),
    )


@torch.inference_mode()
def _logits(decoder: Decoder, backend: AttentionBackend, device: torch.device) -> Tensor:
    """Of all tokens of all steps; the cache holds NaN before."""
    (group,) = decoder.spec.kv_groups
    caches = backend.allocate(group, 5, _BLOCK_SIZE, torch.float32, device)
    for cache in caches.values():
        cache.key.fill_(torch.nan)
        cache.value.fill_(torch.nan)
    found = []
    for step in _STEPS:
        inputs = _inputs(step, device)
        metadata = (backend.prepare(inputs, 0, _BLOCK_SIZE, None),)
        hidden = decoder(inputs, AttentionContext(backend, caches, metadata, (0, 0)))
        found.append(decoder.logits(hidden))
    return torch.cat(found)


def _same_logits(spec: ModelSpec, device: torch.device) -> None:
    expected = _logits(_decoder(spec, TorchCompute, device), TorchAttention(), device)
    found = _logits(_decoder(spec, TritonCompute, device), TritonAttention(), device)
    assert bool(found.isfinite().all())
    assert float((found - expected).abs().max()) <= 1e-5 * float(expected.abs().max())


_LLAMA = {"heads": 6, "kv_heads": 2, "head_dim": 16}
_SPECS = {
    "llama": _spec(qk_norm=False, bias=False, **_LLAMA),
    "biases_and_gelu": _spec(qk_norm=False, bias=True, act="gelu_pytorch_tanh", **_LLAMA),
    "qwen3": _spec(qk_norm=True, bias=False, heads=4, kv_heads=2, head_dim=32),
}
CHECKS = [Check(name, partial(_same_logits, spec)) for name, spec in _SPECS.items()]
BUILDS: list[Build] = []
