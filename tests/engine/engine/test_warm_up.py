"""The first steps launch each kernel in every way that later steps do, so that nothing is compiled in a user's step.

Launches are only recorded (tests/kernels/launches.py): no kernel runs, and results are zeros.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from decoders import make_decoder
from peak_memory import peak_memory
from recorded import RecordedOperations
from worker_setups import run_warm_up, setup_of

from octavo_engine.attention.backend import StepInputs
from octavo_engine.attention.states import StateStep
from octavo_engine.attention.triton import TritonAttention
from octavo_engine.core.step import Chunk, NewRow, StepPlan, TableChange
from octavo_engine.engine.startup import worker_setup
from octavo_engine.engine.startup.resolved_config import attention_task
from octavo_engine.model import decoder as decoder_module
from octavo_engine.model import footprint
from octavo_engine.model.decoder import Decoder
from octavo_engine.model.layers.adapters import lora as lora_layers
from octavo_engine.model.layers.linear import Linear
from octavo_engine.model.layers.operations.triton_compute import triton_compute
from octavo_engine.model.lora import slots as lora_slots
from octavo_engine.model.lora.adapter import AdapterWrite
from octavo_engine.model.lora.slots import LoraSlots, lora_targets
from octavo_engine.model.quantization.fp8 import FP8Scheme
from octavo_engine.model.spec import (
    GatedDeltaNetSpec,
    LatentAttentionSpec,
    LayerSpec,
    MoESpec,
    NormSpec,
    RopeSpec,
    RouterSpec,
)
from octavo_engine.runner import inputs
from octavo_engine.runner import worker as worker_module
from octavo_engine.runner.kv_cache import allocate_cache
from octavo_engine.runner.memory.memory_plan import MemoryNeed, MemoryPlan
from octavo_engine.runner.row_adapters import RowAdapters
from octavo_engine.runner.sampling import sampler
from octavo_engine.runner.state_table import StateTable
from octavo_engine.runner.worker import Worker
from octavo_engine.sampling_params import SamplingParams
from tests.kernels.launches import Launch, watch_launches

CPU = torch.device("cpu")
SIZES = {"hidden_size": 128, "intermediate_size": 256, "num_heads": 4, "head_dim": 128}
LENGTH, ROWS = 1024, 70
LATENT = LatentAttentionSpec(
    num_heads=4,
    query_rank=None,
    latent=64,
    plain_dim=32,
    rotary_dim=16,
    value_dim=32,
    scale=0.1,
    rope=RopeSpec(10000.0),
    norm=NormSpec(1e-6),
)
DELTA_NET = GatedDeltaNetSpec(
    num_heads=4, num_kv_heads=2, key_dim=32, value_dim=64, width=4, activation="silu", norm_eps=1e-6
)
MIXERS: dict[str, tuple[LatentAttentionSpec | GatedDeltaNetSpec | None, set[str]]] = {
    "latent attention": (LATENT, {"latent_attention_kernel", "write_kv_kernel"}),
    "gated delta net": (
        DELTA_NET,
        {"causal_conv_kernel", "conv_state_kernel", "recurrent_kernel", "chunk_kernel", "scan_kernel"},
    ),
}
"""Of the first of two layers, and its kernels."""


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[Launch]:
    """Record a test's launches, on tensors of a CPU as if it were a GPU."""
    seen: list[Launch] = []
    watch_launches(monkeypatch, seen.append)
    for module in (inputs, sampler):
        monkeypatch.setattr(module, "triton_runs_on", lambda _: True)
    monkeypatch.setattr(decoder_module, "choose_compute", lambda *_: triton_compute())
    for name in ("empty", "empty_like"):
        monkeypatch.setattr(torch, name, getattr(torch, name.replace("empty", "zeros")))
    prepare = worker_module.prepare_states

    def prepared(inputs: StepInputs, group: int, spare: int) -> StateStep:
        """PyTorch asks of lengths that they sum up to the tokens; nothing has gathered them."""
        lens = inputs.query_lens_host
        decodes = set(lens) == {1}
        begins = torch.arange(1 + len(lens)) if decodes else torch.tensor((0, *lens)).cumsum(0)
        inputs.cu_query_lens.copy_(begins)
        return prepare(inputs, group, spare)

    monkeypatch.setattr(worker_module, "prepare_states", prepared)
    return seen


def make_worker(
    kv_heads: int,
    scheme: FP8Scheme | None,
    moe: MoESpec | None = None,
    mixer: LatentAttentionSpec | GatedDeltaNetSpec | None = None,
    block_size: int = 16,
    max_loras: int = 0,
) -> tuple[Worker, Decoder]:
    spec = make_decoder(torch.float32, scheme, num_kv_heads=kv_heads, **SIZES).spec
    if moe is not None:
        spec = replace(spec, layers=tuple(replace(layer, feed_forward=moe) for layer in spec.layers))
    if mixer is not None:
        first: LayerSpec = replace(spec.layers[0], mixer=mixer)
        spec = replace(spec, layers=(first, *spec.layers[1:]))
    count = len(spec.kv_groups)
    decoder, backend = Decoder(spec, dtype=torch.bfloat16, device=CPU), TritonAttention()
    for linear in decoder.modules():
        if isinstance(linear, Linear) and scheme is not None:
            linear.weights.in_8_bits, linear.weights.quantized = True, None  # as on a GPU that multiplies in FP8
    cache = allocate_cache(
        backend,
        spec.kv_groups,
        num_blocks=[9] * count,
        swap_blocks=[0] * count,
        block_size=block_size,
        dtype=torch.bfloat16,
        device=CPU,
    )
    adapters = None
    if max_loras:
        slots = LoraSlots(decoder, lora_targets(decoder, CPU, num_slots=max_loras), max_loras, 16)
        adapters = RowAdapters(slots, ROWS, ROWS, CPU)
    return Worker(decoder, backend, cache, StateTable(ROWS, LENGTH, block_size, count, CPU), adapters), decoder


def users_steps() -> Iterator[StepPlan]:
    """Prompts and chunks of many sizes, decodes of as many batch sizes, short and long, both together."""
    ways = [(0.0, 1.0, 1.0), (0.7, 1.0, 1.0), (0.7, 0.9, 1.0), (0.0, 1.0, 1.2), (0.7, 0.9, 1.2)]
    asked = [
        SamplingParams(max_tokens=9, temperature=temperature, top_p=top_p, repetition_penalty=penalty)
        for temperature, top_p, penalty in ways
    ]
    new = tuple(NewRow(row, f"r{row}", (0,) * 300, 300, asked[row % len(ways)]) for row in range(ROWS))
    tables = tuple(TableChange(row, 0, 0, (0,) * (LENGTH // 16)) for row in range(ROWS))
    yield StepPlan(0, new, tables, chunks=(Chunk(0, 0, 7, samples=False),))
    for size in (1, 2, 3, 4, 5, 8, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, ROWS):
        yield StepPlan(0, chunks=(Chunk(3, 11, size, samples=True), Chunk(4, 0, 3, samples=False)))
        yield StepPlan(0, chunks=(Chunk(size % ROWS, 0, 2 * size + 1, samples=True),))
        rows = list(range(size))
        for start in (20, 1000):
            yield StepPlan(0, decode_rows=rows, decode_starts=[start] * size)
        yield StepPlan(0, decode_rows=rows, decode_starts=[20] * size, chunks=(Chunk(5, 0, size, samples=True),))


@pytest.mark.parametrize("kv_heads", [1, 4], ids=["group of 4", "group of 1"])
@pytest.mark.parametrize("scheme", [None, FP8Scheme("block")], ids=["bf16", "fp8 by blocks"])
def test_what_users_steps_launch_was_launched_first(
    launched: list[Launch], kv_heads: int, scheme: FP8Scheme | None
) -> None:
    worker, decoder = make_worker(kv_heads, scheme)
    plan = MemoryPlan(MemoryNeed(0, 0, 1), 0, 0, 9, 16, LENGTH)
    run_warm_up(worker, setup_of(decoder.spec, "cuda", TritonAttention(), plan), plan)
    first = set(launched)
    launched.clear()
    for step in users_steps():
        worker.execute(step)
    new = {(launch.kernel, *launch.constants) for launch in set(launched) - first}
    assert not new
    assert len({launch.kernel for launch in launched}) >= 9


@pytest.mark.parametrize("name", MIXERS)
def test_mixers_have_launched_their_kernels_before_a_user_does(launched: list[Launch], name: str) -> None:
    """With --enforce-eager, too: latent caches are cut into fewer parts the more sequences decode."""
    mixer, kernels = MIXERS[name]
    worker, decoder = make_worker(4, None, mixer=mixer)
    plan = MemoryPlan(MemoryNeed(0, 0, 1), 0, 0, 9, 16, LENGTH)
    run_warm_up(worker, setup_of(decoder.spec, "cuda", TritonAttention(), plan), plan)
    first = set(launched)
    launched.clear()
    for step in users_steps():
        worker.execute(step)
    assert {(launch.kernel, *launch.constants) for launch in set(launched) - first} == set()
    assert kernels <= {launch.kernel for launch in launched}


@pytest.mark.parametrize("name", MIXERS)
def test_decodes_of_mixers_wait_for_no_device(launched: list[Launch], name: str) -> None:
    """So that CUDA graphs can hold them: what the host would wait for, or copies from there, cannot be recorded."""
    mixer, kernels = MIXERS[name]
    worker, _ = make_worker(4, None, mixer=mixer)
    capture = RecordedOperations()
    worker.capture(capture, [1, 8])
    assert capture.recorded == 2
    assert {launch.kernel for launch in launched} >= kernels - {"chunk_kernel", "scan_kernel"}


@pytest.mark.parametrize("name", MIXERS)
def test_a_prompt_by_the_kernels_takes_no_more_memory_than_planned(launched: list[Launch], name: str) -> None:
    """What kernels keep for each other, and what attention keeps, as the plan counts both."""
    mixer, kernels = MIXERS[name]
    worker, decoder = make_worker(4, None, mixer=mixer)
    tokens, backend = 512, TritonAttention()
    new = NewRow(0, "r", (0,) * 600, 600, SamplingParams(max_tokens=9, temperature=0.0))
    tables = tuple(TableChange(0, group, 0, (0,) * (LENGTH // 16)) for group in range(len(decoder.kv_groups)))
    plan = StepPlan(0, (new,), tables, chunks=(Chunk(0, 0, tokens, samples=False),))
    with peak_memory() as peak:
        worker.forward(plan)
    attending = [group for group in decoder.kv_groups if not group.states]
    task = attention_task(decoder, 16, decoder.dtype)
    scratch = max(backend.scratch_bytes(task, group, tokens, 1, LENGTH) for group in attending)
    assert peak.bytes <= footprint.step_bytes(decoder, tokens, 1, scratch)
    assert kernels <= {launch.kernel for launch in launched}


def test_decodes_of_any_number_are_one_kernel_that_has_been_launched_first(launched: list[Launch]) -> None:
    """As --enforce-eager runs them: contexts are cut or not, by a list in either case.

    With blocks so large that the decode of one block is cut into parts as well.
    """
    worker, decoder = make_worker(1, None, block_size=128)
    plan = MemoryPlan(MemoryNeed(0, 0, 1), 0, 0, 9, 128, LENGTH)
    setup = setup_of(decoder.spec, "cuda", TritonAttention(), plan, enforce_eager=True, block_size=128)
    assert worker_setup._capture(setup) is None
    run_warm_up(worker, setup, plan)
    first = set(launched)
    launched.clear()
    for count in (1, 64, 128, 129, 200, 300):
        worker.execute(StepPlan(0, decode_rows=[0] * count, decode_starts=[600] * count))
    found = {launch.constants for launch in launched if launch.kernel == "paged_attention_kernel"}
    assert len(found) == 1
    assert set(launched) <= first


def test_a_chunk_whose_prefix_is_cut_has_been_launched_first(launched: list[Launch]) -> None:
    """Its tiles are few, and each sees a long context: that is another variant than the one for whole prompts."""
    worker, decoder = make_worker(1, None)
    plan = MemoryPlan(MemoryNeed(0, 0, 1), 0, 0, 9, 16, LENGTH)
    run_warm_up(worker, setup_of(decoder.spec, "cuda", TritonAttention(), plan), plan)
    first = set(launched)
    launched.clear()
    for start, size in ((900, 100), (0, 200)):
        worker.execute(StepPlan(0, chunks=(Chunk(0, start, size, samples=False),)))
    found = {launch.constants for launch in launched if launch.kernel == "paged_attention_kernel"}
    assert len(found) == 2, "cut and whole"
    assert {launch for launch in launched if "attention" in launch.kernel} <= first


def test_experts_have_been_multiplied_in_every_tile_before_a_users_prompt(launched: list[Launch]) -> None:
    """gpt-oss's large tile is for prompts of more than 512 tokens."""
    moe = MoESpec(num_experts=16, top_k=2, intermediate_size=64, router=RouterSpec())
    worker, decoder = make_worker(4, None, moe)
    plan = MemoryPlan(MemoryNeed(0, 0, 1), 0, 0, 9, 16, LENGTH)
    run_warm_up(worker, setup_of(decoder.spec, "cuda", TritonAttention(), plan), plan)
    first = {launch.constants for launch in launched if launch.kernel == "moe_gate_up_kernel"}
    launched.clear()
    new = NewRow(0, "r", (0,) * 700, 700, SamplingParams(max_tokens=9, temperature=0.0))
    tables = (TableChange(0, 0, 0, (0,) * (LENGTH // 16)),)
    for length in (1, 100, 200, 700):
        worker.execute(StepPlan(0, (new,), tables, chunks=(Chunk(0, 0, length, samples=True),)))
    found = {launch.constants for launch in launched if launch.kernel == "moe_gate_up_kernel"}
    assert len(found) == 3
    assert found == first


@pytest.mark.parametrize("mixer", [None, LATENT], ids=["attention", "latent attention"])
def test_adapters_have_been_computed_before_a_users_prompt_has_one(
    launched: list[Launch], mixer: LatentAttentionSpec | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --enforce-eager nothing else launches their kernels, and those of experts beside them in large tiles."""
    for module in (lora_layers, lora_slots):
        monkeypatch.setattr(module, "triton_runs_on", lambda _: True)
    moe = MoESpec(num_experts=16, top_k=2, intermediate_size=64, router=RouterSpec())
    worker, decoder = make_worker(4, None, moe, mixer, max_loras=2)
    plan = MemoryPlan(MemoryNeed(0, 0, 1), 0, 0, 9, 16, LENGTH)
    setup = setup_of(decoder.spec, "cuda", TritonAttention(), plan, enforce_eager=True, enable_lora=True)
    run_warm_up(worker, setup, plan)
    first = {(launch.kernel, *launch.constants) for launch in launched}
    launched.clear()
    worker.write_adapter(AdapterWrite(1, "users", "", (), first=True, last=True))
    tables = tuple(TableChange(0, group, 0, (0,) * (LENGTH // 16)) for group in range(len(decoder.kv_groups)))
    for adapter in ("users", ""):
        new = NewRow(0, "r", (0,) * 700, 700, SamplingParams(max_tokens=9, temperature=0.0), adapter=adapter)
        for length in (1, 2, 33, 100, 200, 700):
            worker.execute(StepPlan(0, (new,), tables, chunks=(Chunk(0, 0, length, samples=True),)))
        worker.execute(StepPlan(0, decode_rows=[0] * 5, decode_starts=[20] * 5))
    found = {(launch.kernel, *launch.constants) for launch in launched}
    assert found <= first
    assert {"lora_shrink_kernel", "lora_expand_kernel", "moe_gate_up_kernel"} <= {launch.kernel for launch in launched}
