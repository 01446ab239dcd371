"""Runs padded steps, decodes and mixed ones, with the Triton kernels in Triton's interpreter; test_graphs.py starts it.

Its argument is the folder of a checkpoint. Triton decides when it is first imported whether it interprets, so this file
needs a process of its own.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from test_graphs import begin, load_tiny, make_worker

from octavo_engine.attention.torch_reference import TorchAttention
from octavo_engine.attention.triton import TritonAttention, interpreted
from octavo_engine.core.step import Chunk, StepPlan
from octavo_engine.runner.worker import Worker
from tests.kernels.interpreter import interpret_quickly


class Again:
    """In the place of CUDA graphs: what was recorded is called again, on the same buffers."""

    def capture(self, works):
        return list(works)


def main(folder: Path) -> None:
    """Compare every token and its log probability with those of PyTorch, step by step."""
    assert interpreted()
    interpret_quickly()
    model = load_tiny(folder)
    eager = make_worker(model, None, TorchAttention())
    graphed = make_worker(model, Again(), TritonAttention(), rungs=(1, 4), mixed=(16, 48))
    graphs = graphed._graphs
    lengths = [9, 1, 16]
    for row, length in enumerate(lengths):
        plan = begin(row, list(range(length)))
        assert graphs.graph_of(plan) is graphs.mixed()[0]
        assert graphed.execute(plan).token_ids == eager.execute(plan).token_ids
    start = begin(3, list(range(50)))
    parts = [
        replace(start, chunks=(Chunk(3, 0, 30, False),)),
        StepPlan(0, chunks=(Chunk(3, 30, 5, False),)),
        StepPlan(0, chunks=(Chunk(3, 35, 15, True),)),
    ]
    for rows in ([2, 0, 1], [1], [0, 2, 1]):
        part = parts.pop(0)
        plan = replace(part, decode_rows=rows, decode_starts=[lengths[row] for row in rows])
        assert graphs.graph_of(plan) is graphs.mixed()[plan.num_tokens > 16]
        compare(graphed, eager, plan)
        for row in rows:
            lengths[row] += 1
    for rows in ([2, 0, 1], [1], [0, 2, 1]):
        plan = StepPlan(0, decode_rows=rows, decode_starts=[lengths[row] for row in rows])
        for row in rows:
            lengths[row] += 1
        compare(graphed, eager, plan)


def compare(graphed: Worker, eager: Worker, plan: StepPlan) -> None:
    """Compare the tokens and log probabilities of one step."""
    got, expected = graphed.execute(plan), eager.execute(plan)
    assert got.token_ids == expected.token_ids
    for index, (logprobs,) in expected.logprobs.items():
        assert got.logprobs[index][0].logprob == pytest.approx(logprobs.logprob, abs=1e-4)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    print("the same")
