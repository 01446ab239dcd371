"""Runs padded decode steps with the Triton kernels in Triton's interpreter; test_graphs.py starts it.

Its argument is the folder of a checkpoint. Triton decides when it is first imported whether it interprets, so this file
needs a process of its own.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from test_graphs import begin, load_tiny, make_worker

from octavo_engine.attention.torch_reference import TorchAttention
from octavo_engine.attention.triton import TritonAttention, interpreted
from octavo_engine.core.step import StepPlan
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
    graphed = make_worker(model, Again(), TritonAttention(), rungs=(1, 4))
    lengths = [9, 1, 16]
    for row, length in enumerate(lengths):
        plan = begin(row, list(range(length)))
        assert graphed.execute(plan).token_ids == eager.execute(plan).token_ids
    for rows in ([2, 0, 1], [1], [0, 2, 1]):
        plan = StepPlan(0, decode_rows=rows, decode_starts=[lengths[row] for row in rows])
        for row in rows:
            lengths[row] += 1
        got, expected = graphed.execute(plan), eager.execute(plan)
        assert got.token_ids == expected.token_ids
        for index, (logprobs,) in expected.logprobs.items():
            assert got.logprobs[index][0].logprob == pytest.approx(logprobs.logprob, abs=1e-4)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    print("the same")
