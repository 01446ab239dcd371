"""A step of decodes in one call of the C kernels gives the same bits as step by step, and other steps leave it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

import pytest
import torch
from c_kernels import kernels, needs_kernels  # noqa: F401
from checkpoints import reference_model, save
from compared_logits import random_tokens

from octavo_engine.attention.cpu import CPUAttention
from octavo_engine.core.step import Chunk, NewRow, StepPlan, TableChange
from octavo_engine.kernels.cpu.library import CPUKernels
from octavo_engine.model import decoder as decoder_module
from octavo_engine.model.configuration.read_spec import quantized_online, read_spec
from octavo_engine.model.layers.operations.choose_compute import kernel_compute
from octavo_engine.model.layers.operations.crossovers import Crossovers
from octavo_engine.model.layers.operations.fused import kernels_know_ends
from octavo_engine.model.loader import load_model
from octavo_engine.model.source import ModelFiles
from octavo_engine.model.spec import HeadSpec, HeadTransformSpec, NormSpec, PositionSpec
from octavo_engine.runner.kv_cache import allocate_cache
from octavo_engine.runner.state_table import StateTable
from octavo_engine.runner.worker import Worker
from octavo_engine.sampling_params import SamplingParams

pytestmark = [pytest.mark.usefixtures("several_threads"), needs_kernels]
CPU = torch.device("cpu")
SIZE, ROWS, BLOCKS, LENGTH = 16, 8, 24, 300
SIZES = {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 192}
WINDOWS = {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1}
PROMPTS = {5: 1, 0: 40, 3: 297, 1: 129}
"""The tokens of each row of the state table."""
GREEDY = SamplingParams(max_tokens=64, temperature=0.0)


@dataclass(frozen=True, slots=True)
class Model:
    family: str
    changes: Mapping[str, object]
    quantization: str | None = None


MODELS = {
    "plain": Model("Llama", {"attention_bias": True, "tie_word_embeddings": True}),
    "untied": Model("Llama", {"tie_word_embeddings": False}),
    "windows": Model("Qwen2", WINDOWS),
    "int8": Model("Llama", {"tie_word_embeddings": True}, "int8"),
    "int4": Model("Llama", {"tie_word_embeddings": False}, "int4"),
}


def worker_of(model: Model, folder: Path, by: CPUKernels, crossovers: Crossovers = Crossovers()) -> Worker:  # noqa: B008
    checkpoint = save(reference_model(model.family, **SIZES, **model.changes), folder)
    files = ModelFiles("test", directory=checkpoint)
    spec = quantized_online(read_spec(files), model.quantization)
    compute = kernel_compute(by, fused=spec, crossovers=crossovers)
    with mock.patch.object(decoder_module, "choose_compute", lambda *_: compute):
        decoder = load_model(files, spec, CPU, torch.bfloat16, lambda *_: None)
    backend, groups = CPUAttention(by), len(spec.kv_groups)
    cache = allocate_cache(
        backend,
        spec.kv_groups,
        num_blocks=[ROWS * BLOCKS] * groups,
        swap_blocks=[0] * groups,
        block_size=SIZE,
        dtype=torch.bfloat16,
        device=CPU,
    )
    return Worker(decoder, backend, cache, StateTable(ROWS, LENGTH, SIZE, groups, CPU))


def begin(worker: Worker) -> None:
    """Compute all prompts, each row's blocks in an order of its own."""
    groups = len(worker._table.block_tables)
    news = [NewRow(row, f"r{row}", tuple(random_tokens(size, row)), size, GREEDY) for row, size in PROMPTS.items()]
    blocks = {row: tuple(row * BLOCKS + (7 * i + row) % BLOCKS for i in range(BLOCKS - 5)) for row in PROMPTS}
    changes = [TableChange(row, group, 0, blocks[row]) for row in PROMPTS for group in range(groups)]
    chunks = [Chunk(row, 0, size, True) for row, size in PROMPTS.items()]
    worker.execute(StepPlan(0, tuple(news), tuple(changes), chunks=tuple(chunks)))


def both(worker: Worker, plan: StepPlan, monkeypatch: pytest.MonkeyPatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the logits of a step of decodes in one call and step by step; both write the same keys and values."""
    together = worker.forward(plan)
    with monkeypatch.context() as patch:
        patch.setattr(worker, "_decodes", None)
        apart = worker.forward(plan)
    assert together.sampled is not None and apart.sampled is not None
    for name in ("rows", "positions"):
        assert getattr(together.sampled, name) == getattr(apart.sampled, name)
        device = f"{name}_device"
        assert getattr(together.sampled, device).tolist() == getattr(apart.sampled, device).tolist()
    worker.finish(worker.sample(together))
    assert together.logits is not None and apart.logits is not None
    return together.logits, apart.logits


@pytest.mark.parametrize("name", MODELS)
def test_the_same_bits(kernels: CPUKernels, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """Of one and several rows, with drafts, in contexts of one and of several parts."""
    worker = worker_of(MODELS[name], tmp_path, kernels)
    begin(worker)
    calls: list[int] = []
    monkeypatch.setattr(worker._decoder, "forward", mock.Mock(side_effect=worker._decoder.forward))
    rows = list(PROMPTS)
    for step in range(3):
        starts = [PROMPTS[row] + step for row in rows]
        plans = [
            StepPlan(0, decode_rows=rows, decode_starts=starts),
            StepPlan(0, decode_rows=rows[1:2], decode_starts=starts[1:2]),
            StepPlan(0, decode_rows=rows[1:], decode_starts=starts[1:], drafts={1: (7, 8)} if step == 0 else {}),
        ]
        for plan in plans:
            together, apart = both(worker, plan, monkeypatch)
            calls.append(worker._decoder.forward.call_count)  # type: ignore[attr-defined]
            assert bool(together.isfinite().all())
            assert torch.equal(together, apart)
    assert calls == list(range(1, len(calls) + 1)), "the decoder has computed only the steps that were to be apart"


def test_other_steps_leave_the_call(kernels: CPUKernels, tmp_path: Path) -> None:  # noqa: F811
    """Those with chunks, and those of more tokens than codes are multiplied with."""
    worker = worker_of(MODELS["int4"], tmp_path, kernels, Crossovers(interleaved=3))
    decodes = worker._decodes
    assert decodes is not None
    begin(worker)
    assert decodes(StepPlan(0, chunks=(Chunk(3, 0, 9, True),))) is None
    rows, starts = list(PROMPTS), list(PROMPTS.values())
    assert decodes(StepPlan(0, decode_rows=rows, decode_starts=starts)) is None
    found = decodes(StepPlan(0, decode_rows=rows[:3], decode_starts=starts[:3]))
    assert found is not None
    out = torch.zeros(5, found[1].shape[1])
    again = decodes(StepPlan(0, decode_rows=rows[:3], decode_starts=starts[:3]), out)
    assert again is not None and torch.equal(again[1], found[1])
    assert torch.equal(out[:3], found[1]) and not out[3:].any()


def test_decoders_leave_the_call_by_a_value_that_it_does_not_know(kernels: CPUKernels, tmp_path: Path) -> None:  # noqa: F811
    spec = worker_of(MODELS["plain"], tmp_path, kernels)._decoder.spec
    assert kernels_know_ends(spec)
    assert spec.norm is not None
    for change in (
        {"embedding_scale": 2.0},
        {"embedding_size": 64},
        {"embedding_norm": NormSpec(1e-5)},
        {"affine_embeddings": True},
        {"positions": PositionSpec()},
        {"norm": replace(spec.norm, weight_offset=1.0)},
        {"norm": replace(spec.norm, eps=0.5)},
        {"norm": None},
        {"head": None},
        {"head": HeadSpec(tied=True, scale=0.5)},
        {"head": HeadSpec(tied=True, softcap=30.0)},
        {"head": HeadSpec(tied=True, bias=True)},
        {"head": HeadSpec(tied=True, never=(3,))},
        {"head": HeadSpec(tied=True, transform=HeadTransformSpec(bias=False, activation="gelu", norm=None))},
    ):
        assert not kernels_know_ends(replace(spec, **change)), change
