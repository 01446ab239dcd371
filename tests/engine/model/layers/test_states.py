"""Layers that keep a state of a sequence: the second turn of a chat continues after the first turn's blocks."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from checkpoints import SIZES
from family_pairs import make_pair

from octavo_engine import LLM, SamplingParams
from octavo_engine.engine.startup.rank import decode_memory_plan, encode_memory_plan
from octavo_engine.runner.memory.device_memory import DeviceMemory
from octavo_engine.runner.memory.memory_plan import MemoryLimits, MemoryNeed, MemoryPlan
from octavo_engine.runner.memory.plan_memory import CPU_KV_CACHE, plan_memory

BLOCK = 16
GREEDY = SamplingParams(max_tokens=21, temperature=0.0, ignore_eos=True)


@pytest.mark.parametrize(
    ("model", "chats", "seats", "swap"),
    [("lfm2", 60, 4, 0), ("lfm3", 60, 16, 0), ("mamba2", 60, 16, 0), ("qwen3-next", 12, 4, 1 << 20)],
)
def test_second_turns_hit_the_prefix_cache(model: str, chats: int, seats: int, swap: int, tmp_path: Path) -> None:
    """Hits are those of full attention: all whole blocks whose tokens were computed. Answers are those of no cache.

    LFM3 has windows and states, and full attention. With windows for 32 chats alone a fifth was found.
    """
    directory = make_pair(model, tmp_path).directory
    settings = {"device": "cpu", "dtype": "float32", "max_model_len": 160, "max_num_batched_tokens": 32}
    settings |= {"max_num_seqs": seats, "num_kv_blocks": 600, "swap_space": swap}
    draw = random.Random(3)
    first = [[draw.randrange(SIZES["vocab_size"]) for _ in range(20 + 7 * chat % 50)] for chat in range(chats)]
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


GIB = 1 << 30
QWEN3_NEXT = MemoryNeed(40 * GIB, GIB, kv_per_token=24 << 10, state=75 << 20)
"""About Qwen3-Next-80B in 4 bits: 12 layers attend, 36 keep states."""


def planned(need: MemoryNeed, total: int, max_num_seqs: int = 64) -> MemoryPlan:
    limits = MemoryLimits(0.9, block_size=16, max_num_seqs=max_num_seqs, model_max_len=32768)
    return plan_memory(need, DeviceMemory(total * GIB, total * GIB, "a GPU"), limits)


def test_states_are_bounded_by_memory() -> None:
    """A place for each of twice the requests that may run and one for copies; checkpoints take what tokens take."""
    plan = planned(QWEN3_NEXT, 80)
    places, blocks = plan.blocks_of(None, states=True), plan.num_kv_blocks
    tokens = blocks * 16 * (24 << 10)
    assert places == 2 * 64 + 1 + tokens // (75 << 20)
    assert plan.budget - 42 * GIB < plan.kv_bytes == tokens + places * (75 << 20) <= plan.budget - 41 * GIB
    assert decode_memory_plan(encode_memory_plan(plan)) == plan
    assert f"{places} states" in plan.describe()


def test_states_take_memory_that_nothing_else_needs() -> None:
    """In few blocks of tokens, which all requests that run fill, there would be snapshots for a third of them."""
    limits = MemoryLimits(0.9, block_size=16, max_num_seqs=16, model_max_len=1024, on_cpu=True)
    need = MemoryNeed(GIB, GIB, kv_per_token=36 << 10, state=10 << 20)
    plan = plan_memory(need, DeviceMemory(64 * GIB, 64 * GIB, "a machine"), limits)
    assert plan.num_kv_blocks == 16 * 64
    assert plan.blocks_of(None, states=True) == 256 + 1 + 1024 * 16 * (36 << 10) // (10 << 20)
    assert plan.kv_bytes <= CPU_KV_CACHE


def test_states_are_for_fewer_requests_where_memory_is_short() -> None:
    plan = planned(QWEN3_NEXT, 50, max_num_seqs=256)
    assert plan.window_seqs < 64
    assert plan.kv_bytes <= plan.budget - 41 * GIB


def test_states_alone_hold_any_length() -> None:
    plan = planned(MemoryNeed(5 * GIB, GIB, kv_per_token=0, state=64 << 20), 80)
    assert plan.max_model_len == 32768
    assert plan.blocks_of(None, states=True) == 2 * 64 + 1 + plan.num_kv_blocks // 64
    assert plan.kv_bytes == plan.blocks_of(None, states=True) * (64 << 20)
