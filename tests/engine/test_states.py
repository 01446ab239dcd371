"""Layers that keep a state of a sequence: the second turn of chats begins where the first one's blocks end."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from checkpoints import SIZES
from test_families import make_pair

from octavo_engine import LLM, SamplingParams

CHATS, BLOCK = 12, 16
GREEDY = SamplingParams(max_tokens=21, temperature=0.0, ignore_eos=True)


@pytest.mark.parametrize("swap", [0, 1 << 20])
def test_second_turns_hit_the_prefix_cache(swap: int, tmp_path: Path) -> None:
    """As often as with full attention: all whole blocks whose tokens were computed. Answers are those of no cache."""
    directory = make_pair("lfm2", tmp_path).directory
    settings = {"device": "cpu", "dtype": "float32", "max_model_len": 160, "max_num_batched_tokens": 32}
    settings |= {"max_num_seqs": 4, "num_kv_blocks": 160, "swap_space": swap}
    draw = random.Random(3)
    first = [[draw.randrange(SIZES["vocab_size"]) for _ in range(30 + 3 * chat)] for chat in range(CHATS)]
    llm, plain = LLM(str(directory), **settings), LLM(str(directory), enable_prefix_caching=False, **settings)
    try:
        answers = llm.generate(first, GREEDY)
        second = [prompt + answer.token_ids + [5, 7, 9] for prompt, answer in zip(first, answers, strict=True)]
        again = llm.generate(second, GREEDY)
        expected = plain.generate(second, GREEDY)
    finally:
        llm.close()
        plain.close()
    assert [answer.token_ids for answer in again] == [answer.token_ids for answer in expected]
    computed = [len(prompt) + len(answer.token_ids) - 1 for prompt, answer in zip(first, answers, strict=True)]
    assert [answer.cached_tokens for answer in again] == [tokens // BLOCK * BLOCK for tokens in computed]
