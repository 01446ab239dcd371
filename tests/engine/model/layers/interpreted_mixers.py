"""Answers prompts with the Triton kernels in Triton's interpreter; test_mixers_by_triton.py starts it.

Each line that it reads is a list: the folder of a checkpoint, and adapters, NAME=PATH, which answer the last prompt
beside the base. Triton decides when it is first imported whether it interprets, so this file needs a process of its
own.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import Any

import torch
from triton.runtime.interpreter import InterpretedFunction

from octavo_engine import LLM, SamplingParams
from octavo_engine.attention.triton import interpreted
from octavo_engine.engine.startup import worker_setup
from tests.kernels.interpreter import interpret_quickly

PROMPTS = [[(7 * i) % 61 for i in range(71)], [5, 9, 2], [(5 * i) % 53 for i in range(17)]]
"""The first in two chunks of more than 64 tokens together, the second too short for any; then all decode together."""


class Again:
    """In the place of CUDA graphs: what was recorded is called again, on the same buffers."""

    def capture(self, works: Any) -> list[Any]:
        return list(works)

    def taken(self) -> int:
        return 0


def count_launches() -> Counter[str]:
    """How often each kernel is launched from now on."""
    launched: Counter[str] = Counter()
    grid_of = InterpretedFunction.run

    def run(kernel: Any, *args: Any, **options: Any) -> Any:
        launched[kernel.fn.__name__] += 1
        launched["mxfp4"] += options.get("TILE_ROWS", 0) > 0 and any(
            isinstance(each, torch.Tensor) and each.dtype == torch.uint8 for each in args
        )
        return grid_of(kernel, *args, **options)

    InterpretedFunction.run = run
    return launched


def main() -> None:
    """Write a line with the answers, and with the number of launches of each kernel, for each line that is read."""
    assert interpreted()
    interpret_quickly()
    worker_setup.warm_up = lambda *_: None  # nothing is compiled, and each step takes a second
    worker_setup._capture = lambda _: Again()
    launched = count_launches()
    for line in sys.stdin:
        launched.clear()
        answers = answers_of(*json.loads(line))
        print(json.dumps({"answers": answers, "launched": launched}), flush=True)


def answers_of(folder: str, *adapters: str) -> list[tuple[Any, ...]]:
    """Return each answer: its adapter's name, the prompt, the tokens and their log probabilities."""
    llm = LLM(
        folder,
        device="cpu",
        dtype="float32",
        attention_backend="triton",
        max_num_seqs=4,
        max_num_batched_tokens=69,
        max_model_len=96,
        num_kv_blocks=24,
        **({"enable_lora": True, "max_loras": 2, "max_lora_rank": 8, "lora_modules": adapters} if adapters else {}),
    )
    greedy = SamplingParams(max_tokens=3, temperature=0.0, ignore_eos=True, logprobs=0)
    names = [None] * len(PROMPTS) + [adapter.partition("=")[0] for adapter in adapters for _ in PROMPTS[2:]]
    answers = llm.generate(PROMPTS + PROMPTS[2:] * len(adapters), greedy, adapter=names)
    llm.close()
    return [
        (name, answer.prompt_token_ids, answer.token_ids, [entry.logprob for entry in answer.logprobs])
        for name, answer in zip(names, answers, strict=True)
    ]


if __name__ == "__main__":
    main()
