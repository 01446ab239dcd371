"""Runs padded steps, with adapters too, with the Triton kernels in Triton's interpreter; test_graphs.py starts it.

Its argument is the folder of a checkpoint. Triton decides when it is first imported whether it interprets, so this file
needs a process of its own.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import pytest
import torch
from test_graphs import CPU, ROWS, begin, load_tiny, make_worker

from octavo_engine.attention.torch_reference import TorchAttention
from octavo_engine.attention.triton import TritonAttention, interpreted
from octavo_engine.core.step import Chunk, StepPlan
from octavo_engine.model.decoder import Decoder
from octavo_engine.model.lora.adapter import AdapterWrite
from octavo_engine.model.lora.slots import LoraSlots, lora_targets
from octavo_engine.runner.row_adapters import RowAdapters
from octavo_engine.runner.worker import Worker
from tests.kernels.interpreter import interpret_quickly

ADAPTERS = ("a", "", "b")
"""The adapters of the first rows, one of which has none."""


class Again:
    """In the place of CUDA graphs: what was recorded is called again, on the same buffers."""

    def __init__(self, adapters: RowAdapters) -> None:
        self._adapters = adapters

    def capture(self, works):
        return [partial(self._replay, work) for work in works]

    def _replay(self, work):
        self._adapters.use(())  # as when the graphs without adapters were captured
        work()


def main(folder: Path) -> None:
    """Compare every token and its log probability with those of eager steps, which PyTorch's attention computes."""
    assert interpreted()
    interpret_quickly()
    model = load_tiny(folder)
    slots = random_adapters(model[0])
    eager_adapters, adapters = row_adapters(slots), row_adapters(slots)
    eager = make_worker(model, None, TorchAttention(), adapters=eager_adapters)
    graphed = make_worker(model, Again(adapters), TritonAttention(), rungs=(1, 4), mixed=(16, 48), adapters=adapters)
    lengths = [9, 1, 16]
    for row, (length, adapter) in enumerate(zip(lengths, ADAPTERS, strict=True)):
        compare(graphed, eager, begin(row, list(range(length)), adapter), adapted=bool(adapter))
    start = begin(3, list(range(50)), "b")
    parts = [
        replace(start, chunks=(Chunk(3, 0, 30, False),)),
        StepPlan(0, chunks=(Chunk(3, 30, 5, False),)),
        StepPlan(0, chunks=(Chunk(3, 35, 15, True),)),
    ]
    for rows in ([2, 0, 1], [1], [0, 2, 1]):
        starts = [lengths[row] for row in rows]
        compare(graphed, eager, replace(parts.pop(0), decode_rows=rows, decode_starts=starts), adapted=True)
        for row in rows:
            lengths[row] += 1
    for rows in ([2, 0, 1], [1], [0, 2, 1]):
        plan = StepPlan(0, decode_rows=rows, decode_starts=[lengths[row] for row in rows])
        for row in rows:
            lengths[row] += 1
        compare(graphed, eager, plan, adapted=len(rows) > 1)


def random_adapters(decoder: Decoder) -> LoraSlots:
    """Return two slots with adapters that change tokens."""
    generator = torch.Generator().manual_seed(0)
    slots = LoraSlots(decoder, lora_targets(decoder, CPU, num_slots=2), 2, 8)
    for linear in decoder.linears():
        for slot, (part, size) in product(range(2), enumerate(linear.parts)):
            first = sum(linear.parts[:part])
            linear.lora.put_a(slot, part, torch.randn(2 + slot, linear.columns.size, generator=generator))
            linear.lora.put_b(slot, slice(first, first + size), torch.randn(size, 2 + slot, generator=generator))
    return slots


def row_adapters(slots: LoraSlots) -> RowAdapters:
    """Return what a worker knows of the adapters in `slots`."""
    known = RowAdapters(slots, ROWS, 48, CPU)
    for slot, digest in enumerate(filter(None, ADAPTERS)):
        known.write(AdapterWrite(slot, digest, "", (), first=False, last=True))
    return known


def compare(graphed: Worker, eager: Worker, plan: StepPlan, *, adapted: bool) -> None:
    """Compare the tokens and log probabilities of one step, which a graph with adapters computes if it is `adapted`."""
    graphs = graphed._adapter_graphs if adapted else graphed._graphs
    if plan.chunks:
        assert graphs.graph_of(plan) is graphs.mixed()[plan.num_tokens > 16]
    got, expected = graphed.execute(plan), eager.execute(plan)
    assert got.token_ids == expected.token_ids
    for index, (logprobs,) in expected.logprobs.items():
        assert got.logprobs[index][0].logprob == pytest.approx(logprobs.logprob, abs=1e-4)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    print("the same")
