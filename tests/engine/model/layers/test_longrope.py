"""LongRoPE (arXiv 2402.13753): sequences beyond the original length rotate differently, whatever --max-model-len is."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import SIZES, reference_model, save, save_words
from family_cases.dense import LONGROPE

from octavo_engine import LLM, SamplingParams

ORIGINAL, ANSWER = 48, 24
SCALES = {"short_mscale": 0.9, "long_mscale": 1.3}
MODELS: dict[str, dict[str, Any]] = {
    "Phi3": {"rope_parameters": LONGROPE, "original_max_position_embeddings": ORIGINAL},
    "Phimoe": {
        "rope_parameters": {**LONGROPE, **SCALES, "original_max_position_embeddings": ORIGINAL},
        "num_local_experts": 4,
    },
    "Llama": {"rope_parameters": {**LONGROPE, "factor": 3.0, "original_max_position_embeddings": ORIGINAL}},
}
"""Those that compute a sequence anew when it outgrows the original length, and one that goes on."""
LENGTHS = (5, 47, 48, 49, 33, 90)
"""Of prompts: answers that stay within the original length, that outgrow it, and that are beyond it from the start."""


def generated(model: Any, prompt: list[int]) -> tuple[list[int], torch.Tensor]:
    """The greedy answer of transformers with its cache, and the log probabilities [tokens, vocab]."""
    found = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=ANSWER,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    return found.sequences[0, len(prompt) :].tolist(), torch.cat(found.logits).float().log_softmax(-1)


@pytest.mark.parametrize("family", MODELS)
def test_each_sequence_is_rotated_by_its_own_length(family: str, tmp_path: Path) -> None:
    """Prompts that begin alike come again: long and short sequences must not share what is cached of them."""
    no_ends = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    model = reference_model(family, **no_ends, **MODELS[family])
    model.set_experts_implementation("eager")
    save_words(save(model, tmp_path), SIZES["vocab_size"])
    draw = random.Random(1)
    text = [draw.randrange(SIZES["vocab_size"]) for _ in range(max(LENGTHS))]
    prompts = [text[:length] for length in LENGTHS]
    asked = SamplingParams(max_tokens=ANSWER, temperature=0.0, logprobs=20, ignore_eos=True)
    llm = LLM(
        str(tmp_path), device="cpu", dtype="float32", max_model_len=160, max_num_batched_tokens=32, max_num_seqs=8
    )
    try:
        answers = [*llm.generate(prompts, asked), *llm.generate(prompts[::-1], asked)]
    finally:
        llm.close()
    expected = {len(prompt): generated(model, prompt) for prompt in prompts}
    for answer in answers:
        tokens, logprobs = expected[len(answer.prompt_token_ids)]
        assert answer.token_ids == tokens
        for place, entry in enumerate(answer.logprobs):
            assert abs(entry.logprob - logprobs[place, entry.token_id]) < 1e-3
