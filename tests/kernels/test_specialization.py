"""Steps of every size launch each kernel in the same compiled form, so that no step waits for a compiler.

Triton compiles a kernel again for numbers that are 1 or a multiple of 16, and for addresses that are not a multiple of
16. Here the launches of steps of many sizes are only recorded; no kernel runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from octavo_engine.attention.backend import AttentionVariant, KVGroupSpec, StepInputs
from octavo_engine.attention.context import write_heads
from octavo_engine.attention.qk_norm import QKNorm
from octavo_engine.attention.rope import Rope
from octavo_engine.attention.triton import TritonAttention
from octavo_engine.core.step import Chunk, NewRow, StepPlan
from octavo_engine.kernels.attention.latent_attention import ROWS
from octavo_engine.kernels.experts.experts import Experts
from octavo_engine.kernels.experts.moe import mixture_of_experts
from octavo_engine.kernels.fp8 import quantize
from octavo_engine.kernels.fp8_activations import Scaling
from octavo_engine.kernels.fp8_gemm import block_fp8_matmul
from octavo_engine.kernels.gather import gather_step
from octavo_engine.kernels.lora import LoraWeights, add_lora, group_by_adapter
from octavo_engine.kernels.norm_weights import NormWeights
from octavo_engine.kernels.recurrent.causal_conv import causal_conv
from octavo_engine.kernels.recurrent.gated_delta_net import gated_delta_net
from octavo_engine.model.checkpoint.tensors import Span
from octavo_engine.model.layers.operations.triton_compute import triton_compute
from octavo_engine.model.layers.residual import ResidualSum
from octavo_engine.model.quantization.grouped import Grouped
from octavo_engine.model.quantization.int8 import INT8
from octavo_engine.model.quantization.linear_method import LinearShape
from octavo_engine.runner import inputs
from octavo_engine.runner.sampling import sampler
from octavo_engine.runner.state_table import StateTable
from octavo_engine.sampling_params import SamplingParams
from tests.kernels.launches import watch_launches
from tests.sampling import SampleRow, prepared

CPU = torch.device("cpu")
COUNTS = (*range(1, 20), 32, 33, 48, 64, 100, 128)
Found = dict[tuple[str, ...], set[tuple[tuple[str, str], ...]]]
"""By kernel and compile-time constants, what else it would be compiled for."""


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Iterator[Found]:
    """Collect the forms for which a test's launches would be compiled on Hopper."""
    seen = Found()
    watch_launches(monkeypatch, lambda it: seen.setdefault((it.kernel, *it.constants), set()).add(it.found))
    yield seen
    assert seen, "nothing was launched"
    for key, ways in seen.items():
        first = next(iter(ways))
        others = [sorted(set(way) ^ set(first)) for way in ways if way != first]
        assert not others, f"{key[0]} is compiled {len(ways)} times: {others[0]}"


def table_of(rows: int) -> StateTable:
    table = StateTable(rows, 4096, 16, 2, CPU)
    greedy = SamplingParams(max_tokens=9, temperature=0.0)
    table.apply(StepPlan(0, tuple(NewRow(row, f"r{row}", (1, 2), 2, greedy) for row in range(rows))))
    return table


def test_gathering(found: Found) -> None:
    table = table_of(max(COUNTS) + 2)
    for count in COUNTS:
        decodes = {"decode_rows": list(range(count)), "decode_starts": [17 * count] * count}
        inputs._by_kernel(StepPlan(0, **decodes), table, None, gather_step)
        chunks = tuple(Chunk(count + i, 16 * i, count, samples=True) for i in range(2))
        inputs._by_kernel(StepPlan(0, chunks=chunks, **decodes), table, None, gather_step)


@pytest.mark.parametrize("filtered", [False, True])
def test_sampling_kernels_are_compiled_once_for_all_batch_sizes(found: Found, filtered: bool) -> None:
    params = SamplingParams(max_tokens=9, temperature=0.7, top_k=5 if filtered else 0)
    for count in COUNTS:
        sampler._by_kernels(
            torch.zeros(count, 50_000), *prepared([SampleRow(params, 3, 17, 2)] * count, [None] * count)
        )


def steps(count: int) -> list[tuple[int, ...]]:
    """Query lengths: decodes, a chunk of a prompt, both."""
    return [(1,) * count, (50 + count,), (1,) * count + (50 + count, 77)]


def inputs_of(query_lens: tuple[int, ...], width: int) -> StepInputs:
    total = sum(query_lens)
    return StepInputs(
        token_ids=torch.zeros(total, dtype=torch.int32),
        positions=torch.zeros(total, dtype=torch.int64),
        cu_query_lens=torch.tensor((0, *query_lens)).cumsum(0).int(),
        context_lens=torch.full((len(query_lens),), 200, dtype=torch.int32),
        block_tables=(torch.zeros(len(query_lens), width, dtype=torch.int32),),
        slot_mapping=(torch.zeros(total, dtype=torch.int64),),
        token_indices=torch.zeros(1, dtype=torch.int64),
        query_lens_host=query_lens,
        context_lens_host=(200,) * len(query_lens),
    )


@pytest.mark.parametrize("kv_dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_attention(found: Found, kv_dtype: torch.dtype) -> None:
    backend, group = TritonAttention(), KVGroupSpec("full", (0,), 8, 128)
    cache = backend.allocate(group, 3, 16, kv_dtype, CPU)[0]
    norm = QKNorm(NormWeights(torch.ones(128), 1e-6), NormWeights(torch.ones(128), 1e-6))
    for count in COUNTS:
        for query_lens in steps(count):
            metadata = backend.prepare(inputs_of(query_lens, 13 + count), 0, 16, None)
            total = sum(query_lens)
            heads = torch.zeros(total, (32 + 16) * 128, dtype=torch.bfloat16).view(total, -1, 128)
            rope = Rope(torch.ones(total, 1, 64), torch.ones(total, 1, 64))
            query = write_heads(backend, cache, heads, rope, norm, metadata)
            write_heads(backend, cache, heads, None, None, metadata)
            backend.attend(query, cache, metadata, AttentionVariant(0.1))


@pytest.mark.parametrize("heads", [5, 2 * ROWS])
def test_latent_attention(found: Found, heads: int) -> None:
    """The number of parts a context is cut into is a constant of its own, which the first steps go through."""
    backend, group = TritonAttention(), KVGroupSpec("full", (0,), 1, 576, latent=512)
    cache = backend.allocate(group, 3, 16, torch.bfloat16, CPU)[0]
    for count in COUNTS:
        for query_lens in steps(count):
            metadata = backend.prepare(inputs_of(query_lens, 13 + count), 0, 16, None)
            x = torch.zeros(sum(query_lens), heads, 576, dtype=torch.bfloat16)
            backend.write(cache, x[:, :1], x[:, :1], metadata)
            backend.attend(x, cache, metadata, AttentionVariant(0.1))


def test_layers(found: Found) -> None:
    compute = triton_compute()
    for count in COUNTS:
        x = torch.zeros(count, 4096, dtype=torch.bfloat16)
        weight = torch.ones(4096, dtype=torch.bfloat16)
        for scaling in (None, Scaling(), Scaling(group=128), Scaling(given=torch.ones(1))):
            compute.norm(x, NormWeights(weight, 1e-5), scaling)
            compute.norm(ResidualSum(x, x), NormWeights(weight, 1e-5), scaling)
            compute.gate_for(x, "silu", scaling)
        quantize(x, Scaling())
        found = quantize(x, Scaling(group=128))
        stored, scales = found.values.new_empty(256, 4096), found.scales.new_empty(2, 32)
        block_fp8_matmul(found.values, found.scales, stored, scales, torch.bfloat16)


def lora(count: int) -> None:
    weights = LoraWeights(torch.zeros(3, 32, 256), torch.zeros(3, 64, 16), torch.ones(3), (32, 32))
    groups = group_by_adapter(torch.zeros(count, dtype=torch.int32), 3)
    add_lora(torch.zeros(count, 64), torch.zeros(count, 256), weights, groups)


def quantized(count: int) -> None:
    """Weights whose columns are split and whose are not, and one with each column's group."""
    shape, span = LinearShape((48, 80), Span(0, 1024, 1024, "columns")), Span(0, 160, 160, "columns")
    stored, x = (lambda *_: iter(())), torch.zeros(4 * count, 1024)
    for method, of, tokens in (
        (Grouped("awq", 4, 128, stored, has_zeros=True), shape, len(x)),
        (Grouped("gptq", 4, 32, stored, has_zeros=True, act_order=True), shape, count),
        (INT8(online=True), LinearShape((48,), span), len(x)),
    ):
        weights = method.create(of, x.dtype, CPU, fp8_products=False)
        triton_compute().quantized(x[:tokens, : of.columns.size], weights.quantized, None, torch.zeros(tokens, of.rows))


def experts(count: int) -> None:
    chosen, weights = torch.zeros(count, 2, dtype=torch.int64), torch.ones(count, 2)
    gate_up, down, gate_up_bias, down_bias = (torch.zeros(4, *shape) for shape in ((256, 64), (64, 128), (256,), (64,)))
    for layer in (Experts(gate_up, down), Experts(gate_up, down, gate_up_bias, down_bias, limit=7.0, alpha=1.702)):
        mixture_of_experts(torch.zeros(count, 64), layer, chosen, weights)


def convolution(count: int) -> None:
    sequences = inputs_of((1,) * count, 1)
    rows, state = torch.arange(count), torch.zeros(count, 3, 64)
    lens = (sequences.cu_query_lens, sequences.context_lens)
    causal_conv(torch.zeros(count, 64), torch.zeros(64, 4), None, state, rows, *lens, max_query_len=1, silu=True)


def delta_net(count: int) -> None:
    lens = (1,) * count + (50 + count,)
    sequences, tokens = inputs_of(lens, 1), sum(lens)
    query, value = torch.zeros(tokens, 1, 16), torch.zeros(tokens, 2, 32)
    gates, rows = torch.zeros(2, tokens, 2), torch.arange(len(lens))
    states = (torch.zeros(len(lens), 2, 16, 32), rows, sequences.cu_query_lens, sequences.context_lens)
    gated_delta_net(
        query, query, value, gates[0], gates[1].clone(), *states, max_query_len=max(lens), scale=0.25, normalize=True
    )


@pytest.mark.parametrize("launch", [lora, quantized, experts, convolution, delta_net])
def test_families(found: Found, launch: Callable[[int], None]) -> None:
    for count in COUNTS:
        launch(count)
