"""Measures other engines on the same weights: vLLM, transformers' `generate` and its continuous batching.

All answer prompts of random token ids greedily, with answers of one length, in the engine's data type. vLLM runs where
this Python has it, or the one that --vllm-python names, in a process of its own.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from bench.gpu.context import Context
from bench.gpu.result import Figure, missing, rate
from bench.gpu.steps import free_memory

_VLLM_SECONDS = 540
"""Seconds for vLLM's start and both rounds, less than a lent machine gives a command."""


def vllm(context: Context) -> Iterator[Figure]:
    """Run the first of the offline workloads by vLLM; a failure of it is reported as a missing figure."""
    shape = context.scale.llama
    requests, prompt, answer = context.scale.offline[0]
    case = f"{prompt} + {answer}"
    settings = context.scale.settings
    numbers = (requests, prompt, answer, settings["max_num_seqs"], settings["max_model_len"], shape.vocab, 2)
    script = Path(__file__).with_name("vllm_offline.py")
    command = [context.vllm_python, str(script), context.checkpoint(shape), *map(str, numbers)]
    free_memory()
    try:
        ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_VLLM_SECONDS)
        found = json.loads(ran.stdout.strip().splitlines()[-1])
        seconds, version = [float(each) for each in found["seconds"]], str(found["version"])
    except (OSError, subprocess.SubprocessError, ValueError, LookupError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines() or [type(error).__name__]
        yield missing(shape.name, "vLLM offline", f"vLLM did not run: {said[-1][:300]}", case)
        return
    figure = rate(shape.name, "vLLM offline", case, requests * answer, seconds, None)
    yield replace(figure, note=f"vLLM {version}, without its prefix cache, in 85 % of the memory")


def peers(context: Context) -> Iterator[Figure]:
    """Run the first of the offline workloads; a failure of transformers is reported as a missing figure."""
    try:
        import transformers
    except ImportError:
        yield missing("transformers", "all", "transformers is not installed")
        return
    shape = context.scale.llama
    _, prompt, answer = context.scale.offline[0]
    model = transformers.AutoModelForCausalLM.from_pretrained(context.checkpoint(shape), dtype=torch.bfloat16)
    model = model.to(context.device).eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    prompts = torch.randint(2, shape.vocab, (max(*context.scale.generate_batches, context.scale.continuous), prompt))
    for batch in context.scale.generate_batches:
        yield _tried(
            shape.name,
            "transformers generate",
            f"batches of {batch}",
            lambda size=batch: _generate(model, prompts[:size], answer),
            batch * answer,
        )
    count = context.scale.continuous
    yield _tried(
        shape.name,
        "transformers continuous batching",
        f"{count} requests",
        lambda: _continuous(model, prompts[:count].tolist(), answer, context.scale.continuous_settings),
        count * answer,
    )


def _tried(name: str, what: str, case: str, run: Any, tokens: int) -> Figure:
    try:
        seconds = run()
    except Exception as error:  # noqa: BLE001  (a failure of transformers is a result)
        torch.cuda.empty_cache()
        return missing(name, what, f"failed: {type(error).__name__}: {str(error).splitlines()[0][:300]}", case)
    return rate(name, what, case, tokens, [seconds], None)


def _generate(model: Any, prompts: torch.Tensor, answer: int) -> float:
    inputs = prompts.to(model.device)
    settings = {"do_sample": False, "attention_mask": torch.ones_like(inputs)}

    def run(tokens: int) -> None:
        output = model.generate(inputs, min_new_tokens=tokens, max_new_tokens=tokens, **settings)
        assert output.shape[1] == inputs.shape[1] + tokens

    run(4)  # warm-up
    begin = time.perf_counter()
    run(answer)
    if model.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def _continuous(model: Any, prompts: list[list[int]], answer: int, settings: dict[str, Any]) -> float:
    """Measure from the first request's first step to the last one's end, without preparations before that."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    config = GenerationConfig(max_new_tokens=answer, do_sample=False, eos_token_id=-1, pad_token_id=0)
    options = ContinuousBatchingConfig(**settings)
    answers = model.generate_batch(prompts, generation_config=config, continuous_batching_config=options)
    made = sum(len(each.generated_tokens) for each in answers.values())
    if made != len(prompts) * answer:
        raise RuntimeError(f"{made} tokens instead of {len(prompts) * answer}")
    spans = [each.lifespan for each in answers.values()]
    return float(max(end for _, end in spans) - min(begin for begin, _ in spans))
