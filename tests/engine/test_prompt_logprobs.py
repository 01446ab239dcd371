"""The log probabilities of prompts are transformers': in chunks, beside answers, preempted, and found in caches."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from reference import assert_prompts

from octavo_engine import LLM, SamplingParams
from octavo_engine.runner import prompt_outputs

SCORE = SamplingParams(max_tokens=0, prompt_logprobs=3)
SETTINGS: dict[str, Any] = {"device": "cpu", "dtype": "float32", "max_model_len": 400}


def test_prompts_in_chunks_beside_answers_and_after_preemptions(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The longest prompt fills the context; logits are computed for two places at a time."""
    monkeypatch.setattr(prompt_outputs, "_MOST_LOGITS", 2)
    llm = LLM(str(tiny_model), num_kv_blocks=26, max_num_batched_tokens=48, max_num_seqs=6, **SETTINGS)
    draw = random.Random(2)
    prompts = [[draw.randrange(64) for _ in range(length)] for length in (1, 2, 400, 47, 48, 49, 150)]
    answering = SamplingParams(max_tokens=60, temperature=0.0, prompt_logprobs=3)
    answers = llm.generate(prompts * 2, [SCORE] * 7 + [SCORE, SCORE, SCORE, *[answering] * 4])
    assert llm.report().preemptions > 0
    assert [len(answer.token_ids) for answer in answers] == [0] * 10 + [60] * 4
    assert {answer.finish_reason for answer in answers} == {"length"}
    llm.close()
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32).eval()
    assert_prompts(model, answers, 3)
