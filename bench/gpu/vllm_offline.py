"""Measures vLLM's offline throughput in a process of its own, which peers.py starts, perhaps with another Python.

    PYTHON bench/gpu/vllm_offline.py CHECKPOINT REQUESTS PROMPT ANSWER MAX_NUM_SEQS MAX_MODEL_LEN VOCABULARY ROUNDS

It imports nothing of ours, so that any environment with vLLM can run it. The last line that it prints is JSON.
"""

from __future__ import annotations

import json
import random
import sys
import time
from typing import Any


def main(checkpoint: str, *numbers: str) -> None:
    """Print vLLM's version and the seconds of each round, in which all requests are answered greedily."""
    requests, prompt, answer, max_num_seqs, max_model_len, vocabulary, rounds = map(int, numbers)
    import vllm

    llm = vllm.LLM(
        model=checkpoint,
        dtype="bfloat16",
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        enable_prefix_caching=False,
        gpu_memory_utilization=0.85,  # the process that waits for this one has a context on the device
    )
    draw = random.Random(0)

    def run(count: int, length: int, tokens: int) -> float:
        prompts: list[Any] = [{"prompt_token_ids": draw.choices(range(2, vocabulary), k=length)} for _ in range(count)]
        greedy = vllm.SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
        begin = time.perf_counter()
        answers = llm.generate(prompts, greedy, use_tqdm=False)
        seconds = time.perf_counter() - begin
        if any(len(each.outputs[0].token_ids) != tokens for each in answers):
            raise RuntimeError("an answer has not as many tokens as were asked for")
        return seconds

    run(8, 8, 8)  # warm-up
    print(json.dumps({"version": vllm.__version__, "seconds": [run(requests, prompt, answer) for _ in range(rounds)]}))


if __name__ == "__main__":
    main(*sys.argv[1:])
