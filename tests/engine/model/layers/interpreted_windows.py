"""Runs a model with two KV groups with the Triton kernels in Triton's interpreter; test_windows.py starts it.

Triton decides when it is first imported whether it interprets, so this needs a process of its own.
"""

from __future__ import annotations

import json
import sys

from octavo_engine import LLM, SamplingParams
from octavo_engine.attention.triton import interpreted
from octavo_engine.engine.startup import resolved_config, worker_setup
from octavo_engine.model.configuration.read_spec import read_spec
from tests.engine.model.layers.windowed import WINDOW, windowed
from tests.kernels.interpreter import interpret_quickly

PROMPT = [(7 * i) % 61 for i in range(24)]
"""Computed in two chunks, the second of which sees less than the first; then the first block is found again."""


def main(folder: str) -> None:
    assert interpreted()
    interpret_quickly()
    worker_setup.warm_up = lambda *_: None  # nothing is compiled, and each step takes a second
    resolved_config.read_spec = lambda files: windowed(read_spec(files), WINDOW)
    llm = LLM(
        folder,
        device="cpu",
        dtype="float32",
        attention_backend="triton",
        max_num_seqs=2,
        max_num_batched_tokens=16,
        max_model_len=32,
    )
    greedy = [SamplingParams(max_tokens=n, temperature=0.0, ignore_eos=True, logprobs=0) for n in (1, 2)]
    answers = [llm.generate([PROMPT], params)[0] for params in greedy]
    outputs = [(a.prompt_token_ids, a.token_ids, [x.logprob for x in a.logprobs], a.cached_tokens) for a in answers]
    print(json.dumps(outputs))


if __name__ == "__main__":
    main(sys.argv[1])
