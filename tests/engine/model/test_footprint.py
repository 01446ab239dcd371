"""The bound of a step's memory holds, and is not far above what the step takes."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
import torch
from decoders import WIDE, make_decoder
from peak_memory import peak_memory
from stepper import Sequence, Stepper

from octavo_engine.attention.backend import AttentionTask
from octavo_engine.attention.cpu import CPUAttention
from octavo_engine.core.step import NewRow, StepPlan, TableChange
from octavo_engine.engine.startup.resolved_config import attention_task
from octavo_engine.kernels.cpu.library import cpu_kernels
from octavo_engine.model import decoder as decoder_module
from octavo_engine.model import footprint
from octavo_engine.model.configuration.supported_models import small_spec
from octavo_engine.model.decoder import Decoder
from octavo_engine.model.families import FAMILIES
from octavo_engine.model.layers.operations.choose_compute import kernel_compute, torch_compute
from octavo_engine.model.layers.operations.compute import Compute
from octavo_engine.model.layers.operations.paths import Path
from octavo_engine.model.quantization.fp8 import FP8Scheme
from octavo_engine.model.spec import (
    GatedDeltaNetSpec,
    LatentAttentionSpec,
    MoESpec,
    NormSpec,
    RopeSpec,
    RouterSpec,
)
from octavo_engine.runner.inputs import gather_inputs
from octavo_engine.runner.sampling.sampler import sample
from octavo_engine.runner.state_table import StateTable
from octavo_engine.sampling_params import SamplingParams
from tests.sampling import SampleRow, prepared

SHAPES = {
    "wide feed-forward": WIDE,
    "many heads": {**WIDE, "intermediate_size": 64, "num_heads": 32, "num_kv_heads": 32},
    "narrow": {**WIDE, "intermediate_size": 64, "num_heads": 1, "num_kv_heads": 1},
    "large vocabulary": {**WIDE, "vocab_size": 20_000},
}

PATHS = get_args(Path)
"""The ways to compute on a CPU, on weights that were not prepared; test_compute.py tests which is chosen where."""
CASES = [("torch", torch.float32), ("kernels", torch.float32), *((path, torch.bfloat16) for path in PATHS)]


def compute_by(path: Path) -> Compute:
    if path.startswith("torch"):
        return torch_compute(path)
    if (kernels := cpu_kernels()) is None:
        pytest.skip("the C kernels need AVX2 and gcc")
    return kernel_compute(kernels, path)


def task_of(decoder: Decoder) -> AttentionTask:
    return attention_task(decoder, 16, decoder.dtype)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize(("lens", "computed"), [((700, 200, 100), 0), ((300,) * 20, 299)], ids=["prefill", "decode"])
@pytest.mark.parametrize(("path", "dtype"), CASES, ids=str)
def test_step_bytes_bounds_a_step(shape, dtype, lens, computed, path, monkeypatch):
    monkeypatch.setattr(decoder_module, "choose_compute", lambda *_: compute_by(path))
    decoder = make_decoder(dtype, **shape)
    stepper = Stepper(decoder, num_blocks=640)
    sequences = [Sequence([7] * n, computed) for n in lens]  # of what was computed only the place counts here
    work = [(sequence, len(sequence.tokens) - computed) for sequence in sequences]
    tokens = sum(count for _, count in work)
    sample = list(range(tokens - len(work), tokens))
    with peak_memory() as peak:
        stepper.step(work, sample=sample)
    (group,) = decoder.kv_groups
    scratch = stepper.backend.scratch_bytes(task_of(decoder), group, tokens, len(lens), max(lens))
    bound = footprint.step_bytes(decoder, tokens, len(lens), scratch)
    bound += decoder.compute.widens * footprint.widening_bytes(decoder, tokens)
    assert peak.bytes <= bound
    if path.startswith("torch"):  # kernels of our own need less
        assert peak.bytes > bound / 8


MIXTURE = MoESpec(num_experts=4, top_k=2, intermediate_size=512, router=RouterSpec(scores="softmax"))
DELTA_NET = GatedDeltaNetSpec(
    num_heads=16, num_kv_heads=8, key_dim=32, value_dim=32, width=4, activation="silu", norm_eps=1e-6
)

LATENTS = LatentAttentionSpec(
    num_heads=8,
    query_rank=64,
    latent=128,
    plain_dim=32,
    rotary_dim=16,
    value_dim=32,
    scale=48**-0.5,
    rope=RopeSpec(10000.0),
    norm=NormSpec(1e-5),
)
KINDS = {"experts": {"feed_forward": MIXTURE}, "hybrid": {"mixer": DELTA_NET}, "latents": {"mixer": LATENTS}}


@pytest.mark.parametrize(("lens", "computed"), [((700, 200, 100), 0), ((300,) * 20, 299)], ids=["prefill", "decode"])
@pytest.mark.parametrize("changes", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_step_bytes_bounds_a_step_of_other_layers(changes, lens, computed, dtype):
    """The bound counts an expert's rows and a chunk's scores once, not for each token of a prompt.

    It has no place for the scores of latent attention, nor for a copy of the keys for each head.
    """
    spec = make_decoder(dtype, **WIDE).spec
    spec = replace(spec, layers=tuple(replace(layer, **changes) for layer in spec.layers))
    decoder = Decoder(spec, dtype=dtype, device=torch.device("cpu"))
    for parameter in decoder.parameters():
        parameter.copy_(torch.randn(parameter.shape) * 0.02)
    stepper = Stepper(decoder, num_blocks=640)
    work = [(Sequence([7] * n, computed), n - computed) for n in lens]
    tokens = sum(count for _, count in work)
    with peak_memory() as peak:
        stepper.step(work, sample=list(range(tokens - len(work), tokens)))
    attending = [group for group in decoder.kv_groups if group.for_backend]
    scratch = max(
        (stepper.backend.scratch_bytes(task_of(decoder), group, tokens, len(lens), max(lens)) for group in attending),
        default=0,
    )
    bound = footprint.step_bytes(decoder, tokens, len(lens), scratch + footprint.module_scratch_bytes(decoder))
    widened = decoder.compute.widens * footprint.widening_bytes(decoder, tokens)
    assert peak.bytes <= bound + widened
    if not computed:  # attention's scratch is a large part for decodes; what is widened may be so at another moment
        assert peak.bytes > bound / (2 if changes.get("mixer") is DELTA_NET else 4)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize(("lens", "computed"), [((700, 200, 100), 0), ((300,) * 20, 299)], ids=["prefill", "decode"])
def test_step_bytes_bounds_a_step_in_one_call_of_the_kernels(shape, lens, computed, monkeypatch):
    """Without the tensors that PyTorch needs between operations, which no step allocates then."""
    if (kernels := cpu_kernels()) is None:
        pytest.skip("the C kernels need AVX2 and gcc")
    monkeypatch.setattr(decoder_module, "choose_compute", lambda spec, *_: kernel_compute(kernels, "kernels", spec))
    decoder = make_decoder(torch.bfloat16, **shape)
    stepper = Stepper(decoder, num_blocks=640, backend=CPUAttention(kernels))
    work = [(Sequence([7] * n, computed), n - computed) for n in lens]
    tokens = sum(count for _, count in work)
    with peak_memory() as peak:
        stepper.step(work, sample=list(range(tokens - len(work), tokens)))
    (group,) = decoder.kv_groups
    scratch = stepper.backend.scratch_bytes(task_of(decoder), group, tokens, len(lens), max(lens))
    bound = footprint.step_bytes(decoder, tokens, len(lens), scratch, fused=True)
    assert bound / 8 < peak.bytes <= bound < footprint.step_bytes(decoder, tokens, len(lens), scratch)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("granularity", ["channel", "block"])
@pytest.mark.parametrize("lens", [(600,), (3, 2)], ids=["many tokens", "few tokens"])
def test_step_bytes_bounds_a_step_that_dequantizes(lens, granularity, dtype):
    shape = {"hidden_size": 256, "intermediate_size": 1024, "num_heads": 8, "num_kv_heads": 4, "head_dim": 32}
    decoder = make_decoder(dtype, FP8Scheme(granularity), **shape)
    stepper = Stepper(decoder, num_blocks=64)
    (group,) = decoder.kv_groups
    stepper.caches = stepper.backend.allocate(group, 64, 16, torch.float8_e4m3fn, torch.device("cpu"))
    with peak_memory() as peak:
        stepper.step([(Sequence([7] * count), count) for count in lens], sample=[0])
    task = attention_task(decoder, 16, torch.float8_e4m3fn)
    scratch = stepper.backend.scratch_bytes(task, group, sum(lens), len(lens), max(lens))
    scratch += footprint.module_scratch_bytes(decoder)
    bound = footprint.step_bytes(decoder, sum(lens), len(lens), scratch)
    bound += decoder.compute.widens * footprint.widening_bytes(decoder, sum(lens))
    assert bound / 8 < peak.bytes <= bound


EVERYTHING = {"top_p": 0.9, "min_p": 0.01, "logprobs": 20, "repetition_penalty": 1.2, "frequency_penalty": 0.1}
REQUESTS = {
    "greedy": {"temperature": 0.0, "logprobs": 20},
    "drawing": {"temperature": 0.8},
    "top k": {"temperature": 0.8, "top_k": 40},
    "penalties": {"temperature": 0.0, "logprobs": 20, "repetition_penalty": 1.2, "presence_penalty": 0.1},
    "everything": {"temperature": 0.8, "top_k": 7000, **EVERYTHING},
}


def test_step_bytes_counts_a_layer_without_mixer_and_feed_forward():
    """Llama 3.2 Vision's layers that look at images have no part left in a model of text."""
    spec = small_spec(FAMILIES["MllamaForCausalLM"])
    decoder = Decoder(spec, dtype=torch.bfloat16, device=torch.device("meta"))
    assert any(layer.spec.mixer is None and layer.spec.feed_forward is None for layer in decoder.decoder_layers)
    assert footprint.step_bytes(decoder, max_tokens=10, max_seqs=1) > 0


@pytest.mark.parametrize("rows", [1, 9])
@pytest.mark.parametrize("asked", REQUESTS.values(), ids=REQUESTS)
@pytest.mark.parametrize("spread", [3.0, 0.001], ids=["peaked", "flat"])
def test_sampler_bytes_bounds_a_sampling(asked, rows, spread):
    """A flat distribution needs a full sort for top-p."""
    vocab = 8000
    logits = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(1)) * spread
    described = [SampleRow(SamplingParams(max_tokens=9, **asked), 7, 50, 5)] * rows
    history = [torch.arange(50, dtype=torch.int32) if "repetition_penalty" in asked else None] * rows
    sampled, table = prepared(described, history)
    with peak_memory() as peak:
        sample(logits, sampled, table)
    bound = footprint.sampler_bytes(vocab, rows)
    assert peak.bytes <= bound
    if asked == REQUESTS["everything"]:
        assert peak.bytes > bound * 0.8 * rows / (rows + 1)


@pytest.mark.parametrize(("length", "block_size", "groups"), [(4096, 16, 1), (4001, 64, 3)])
def test_state_table_bytes_bounds_the_table_and_what_a_step_gathers(length, block_size, groups):
    rows, blocks = 32, -(-length // block_size)
    owned = tuple(range(1, blocks + 1))
    params, known = SamplingParams(max_tokens=9), tuple(range(length))
    fresh = tuple(NewRow(row, f"r{row}", token_ids=known, prompt_len=length, sampling=params) for row in range(rows))
    tables = tuple(TableChange(row, group, 0, owned) for row in range(rows) for group in range(groups))
    plan = StepPlan(1, fresh, tables, decode_rows=list(range(rows)), decode_starts=[length - 1] * rows)
    with peak_memory() as peak:
        table = StateTable(rows, length, block_size, groups, torch.device("cpu"))
        table.apply(plan)
        inputs = gather_inputs(plan, table).inputs
    bound = footprint.state_table_bytes(rows, rows, length, block_size, groups)
    bound += plan.num_tokens * footprint.input_bytes(groups)
    assert len(inputs.block_tables) == groups
    assert bound * 0.95 < peak.bytes <= bound
