"""LoRA adapters on quantized models (QLoRA, arXiv 2305.14314): the answers of merged dequantized weights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fp8_checkpoints
import grouped_checkpoints
import pytest
import torch
from adapters import RandomAdapter
from checkpoints import save_words
from expert_adapters import StackedAdapter
from quantized_pairs import save_pair
from reference import assert_same
from test_expert_adapters import GREEDY, SETTINGS
from test_lora import PROMPTS

from octavo_engine import LLM


def assert_answers(packed: Path, model: Callable[[], Any], adapter: RandomAdapter | StackedAdapter) -> None:
    """Those of the checkpoint with the adapter are the model's with merged weights; the base's beside are its own."""
    save_words(packed, model().config.vocab_size)
    module = f"ours={adapter.save(model(), packed / 'adapter')}"
    llm = LLM(str(packed), enable_lora=True, lora_modules=[module], **SETTINGS)
    answers = llm.generate([PROMPTS[0]] * 2, GREEDY, adapter=["ours", None])
    llm.close()
    assert_same(adapter.merge(model()), answers[:1], GREEDY.max_tokens)
    assert_same(model(), answers[1:], GREEDY.max_tokens)


SCHEMES = ("nf4_nested", "llm_int8", "gptq_act_order", "awq", "w4a16", "nvfp4", "mxfp4", "torchao_int4", "deepseek")


@pytest.mark.parametrize("name", SCHEMES)
def test_adapters_of_a_quantized_base_answer_as_merged_weights(name: str, tmp_path: Path) -> None:
    of = fp8_checkpoints.save_fp8 if name in fp8_checkpoints.FORMATS else grouped_checkpoints.save_grouped
    model = of(tmp_path, name)
    assert_answers(tmp_path, lambda: copy.deepcopy(model), RandomAdapter(4, seed=1))


def test_adapters_of_quantized_experts_answer_as_merged_weights(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    packed, exact = save_pair(tmp_path, "awq")
    model = AutoModelForCausalLM.from_pretrained(exact, dtype=torch.float32).eval()
    assert_answers(packed, lambda: copy.deepcopy(model), StackedAdapter(3, seed=1))
