"""Models with sliding windows in some layers: two KV groups through the whole engine, against transformers.

One checkpoint of Qwen3 serves for all windows: the spec that is read from its config.json, which has none, is changed.
Answers are greedy, and one forward pass of the reference over prompt and answer judges each place.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import reference_model, save
from windowed import LAYERS, WINDOW, windowed

from octavo_engine import LLM, SamplingParams
from octavo_engine.core.block_pool import BlockPool
from octavo_engine.core.prefix_cache import extend_hashes
from octavo_engine.core.request import Request
from octavo_engine.core.request_state import RequestState
from octavo_engine.engine.startup import resolved_config
from octavo_engine.engine.startup.rank import decode_memory_plan, encode_memory_plan
from octavo_engine.errors import ConfigurationError, DoesNotFitError
from octavo_engine.llm import Completion
from octavo_engine.model.configuration.read_spec import read_spec
from octavo_engine.model_outputs import TokenLogprobs
from octavo_engine.runner.memory.device_memory import DeviceMemory
from octavo_engine.runner.memory.kv_blocks import WindowNeed
from octavo_engine.runner.memory.memory_plan import MemoryLimits, MemoryNeed
from octavo_engine.runner.memory.plan_memory import plan_memory

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "head_dim": 8, "vocab_size": 64}
SETTINGS: dict[str, Any] = {"device": "cpu", "dtype": "float32", "attention_backend": "torch", "max_num_seqs": 6}
TIGHT = {"num_kv_blocks": 11, "max_model_len": 160, "max_num_batched_tokens": 24}
"""One whole sequence and a block: requests beside each other run out of blocks."""
BEGINNING = [(7 * i) % 61 for i in range(48)]
PROMPTS = [
    [5],
    [*BEGINNING[:16]],
    [*BEGINNING, 3, 4],
    [*BEGINNING, 9],
    [(5 * i + 1) % 59 for i in range(33)],
    [(3 * i + 2) % 53 for i in range(100)],
]
GREEDY = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True, logprobs=0)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """Qwen3 whose config.json says nothing of windows, with the tiny model's tokenizer."""
    folder = save(reference_model("Qwen3", **SIZES), tmp_path_factory.mktemp("windows"))
    (folder / "tokenizer.json").write_bytes((tiny_model / "tokenizer.json").read_bytes())
    return folder


@pytest.fixture
def load(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Loads the checkpoint with a window, by the engine's own start."""
    loaded: list[LLM] = []

    def loading(window: int, **settings: Any) -> LLM:
        monkeypatch.setattr(resolved_config, "read_spec", lambda files: windowed(read_spec(files), window))
        loaded.append(LLM(str(checkpoint), **{**SETTINGS, **settings}))
        return loaded[-1]

    yield loading
    for llm in loaded:
        llm.close()


@torch.inference_mode()
def assert_as_reference(window: int, answers: list[Completion]) -> None:
    """Each token of each answer is the likeliest one after all before it, and as likely as transformers says."""
    windows = {"layer_types": list(LAYERS), "use_sliding_window": True, "sliding_window": window}
    model = reference_model("Qwen3", **SIZES, **windows, attn_implementation="eager").double()
    for answer in answers:
        assert answer.error is None
        count = len(answer.token_ids)
        ids = torch.tensor([[*answer.prompt_token_ids, *answer.token_ids]])
        logits = model(ids).logits[0, len(answer.prompt_token_ids) - 1 : -1]
        assert logits.argmax(-1).tolist() == answer.token_ids
        expected = logits.log_softmax(-1).gather(1, ids[0, -count:, None]).flatten()
        said = torch.tensor([entry.logprob for entry in answer.logprobs]).double()
        torch.testing.assert_close(said, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("window", [1, 16, 17, 500])
def test_answers_are_those_of_transformers(load: Any, window: int) -> None:
    """Alone, then in a batch with prefix hits and preemptions; 500 is longer than any context."""
    llm = load(window, **TIGHT)
    alone = [llm.generate([prompt], GREEDY)[0] for prompt in PROMPTS[:3]]
    batched = llm.generate(PROMPTS * 2, GREEDY)
    assert_as_reference(window, [*alone, *batched[:6]])
    assert [answer.token_ids for answer in batched[6:]] == [answer.token_ids for answer in batched[:6]]
    assert {len(answer.token_ids) for answer in [*alone, *batched]} == {GREEDY.max_tokens}
    stats = llm.report()
    assert stats.preemptions > 0
    assert stats.prefix_hit_tokens > 0
    assert stats.kv_blocks_used == 0


def test_a_hit_is_as_long_as_both_groups_know(load: Any) -> None:
    """The full group knows all; what the sliding one has forgotten is computed, for a window of 33 before its end."""
    llm = load(33, **TIGHT)
    memory = llm._loop._scheduler.memory
    first = llm.generate([[*BEGINNING, 3]], GREEDY)[0]
    assert llm.generate([[*BEGINNING, 4]], GREEDY)[0].cached_tokens == 48
    sliding = memory.pools[1]
    hashes = extend_hashes(_state(BEGINNING), 3, 16)
    _forget(sliding, hashes[2])
    again = llm.generate([[*BEGINNING, 3]], GREEDY)[0]
    assert again.cached_tokens == 32
    assert again.token_ids == first.token_ids
    _forget(sliding, hashes[0])  # a window before token 48 begins at 16
    assert llm.generate([[*BEGINNING, 5]], GREEDY)[0].cached_tokens == 48


def _state(tokens: list[int]) -> RequestState:
    request = Request(request_id="probe", prompt_token_ids=tuple(tokens), sampling=GREEDY)
    return RequestState(request, arrival=0.0, final_len=len(tokens))


def _forget(pool: BlockPool, digest: bytes) -> None:
    assert pool.cache is not None
    block = pool.cache.get(digest)
    assert block is not None
    pool.forget(digest, pool.cache.known[block].owner)


@pytest.mark.parametrize("swap_space", [0, 1 << 20])
def test_preempted_requests_go_on_as_if_nothing_had_been(load: Any, swap_space: int) -> None:
    llm = load(10, **TIGHT, swap_space=swap_space, enable_prefix_caching=False)
    if swap_space:
        llm._loop._scheduler.planner.cost.token_seconds = 1.0  # so that swapping is always cheaper
        memory = llm._loop._scheduler.memory
        assert memory.swap.pools[0].num_blocks > memory.swap.pools[1].num_blocks > 0
    assert_as_reference(10, llm.generate(PROMPTS, GREEDY))
    stats = llm.report()
    assert stats.preemptions > 0
    assert (stats.swapped_in_blocks > 0) == (swap_space > 0)


def test_a_window_bounds_what_a_sequence_holds(load: Any) -> None:
    """4 blocks of one step's 24 tokens and a window of 16, while the full group's grow to 10."""
    llm = load(16, **TIGHT, enable_prefix_caching=False)
    full, sliding = llm._loop._scheduler.memory.pools
    held = []
    sampling = replace(GREEDY, max_tokens=60)
    llm._loop.add(Request(request_id="a", prompt_token_ids=tuple(PROMPTS[-1]), sampling=sampling))
    while llm._loop.has_work:
        llm._loop.step()
        held.append((full.used, sliding.used))
    assert max(used for used, _ in held) == 10
    assert max(used for _, used in held) <= 4
    assert held[-2][1] <= 2


def test_the_cache_is_allocated_as_planned(load: Any) -> None:
    """The sliding group has windows of 16 at any offset for twice 2 requests, and a step of 24 tokens.

    There is no memory for more: those would take more than an eighth of it.
    """
    llm = load(16, kv_cache_memory=140 << 10, max_model_len=160, max_num_batched_tokens=24, max_num_seqs=2)
    full, sliding = llm._loop._scheduler.memory.pools
    assert (full.num_blocks, sliding.num_blocks) == (50, 4 * 2 + 2)
    layers = llm._loop._executor._worker._cache.layers  # type: ignore[attr-defined]
    assert [len(layers[i].key) for i in range(3)] == [10, 50, 10]
    assert llm.info.memory is not None
    assert llm.info.memory.kv_per_token == 2 * 2 * 8 * 4, "of the one layer with full attention"


GIB = 1 << 30
GPT_OSS = MemoryNeed(13 * GIB, GIB, kv_per_token=24 << 10, windows=(WindowNeed(128, 24 << 10),))
"""About gpt-oss-20b: 12 layers of each kind, 8 heads of 64."""


def limits(**changes: Any) -> MemoryLimits:
    return MemoryLimits(
        **{"utilization": 0.9, "block_size": 16, "max_num_seqs": 256, "model_max_len": 131072} | changes
    )


def test_windows_take_what_so_many_requests_can_use_and_full_attention_the_rest() -> None:
    plan = plan_memory(GPT_OSS, DeviceMemory(80 * GIB, 80 * GIB, "a GPU"), limits())
    assert plan.blocks_of(128) == 4 * 512 * 9 + 2048 // 16, "twice as many would be more than an eighth"
    block = 16 * (24 << 10)
    assert plan.num_kv_blocks == (58 * GIB - plan.blocks_of(128) * block) // block
    assert plan.kv_bytes == (plan.num_kv_blocks + plan.blocks_of(128)) * block
    assert decode_memory_plan(encode_memory_plan(plan)) == plan


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({"num_kv_blocks": 2000}, 2000),
        ({"max_model_len": 2000, "max_num_seqs": 16}, 2000),
        ({"max_model_len": 2000, "max_num_seqs": 16, "prefix_caching": False}, 32 * 9 + 128),
        ({"kv_cache_memory": 3 * GIB, "max_num_seqs": 16}, 64 * 9 + 128),
        ({"num_kv_blocks": 10_000, "max_num_seqs": 16, "on_cpu": True}, 128 * 9 + 128),
    ],
)
def test_windows_of_the_prefix_cache_take_memory_that_nothing_else_needs(changes: dict[str, Any], windows: int) -> None:
    """As many blocks as full attention has, where that has all it asks for; else no more than an eighth of the cache.

    With windows for twice the running requests the second turns of 60 chats found a fifth of what was computed. A CPU
    has memory for 4 GiB of cache and no more.
    """
    plan = plan_memory(GPT_OSS, DeviceMemory(80 * GIB, 80 * GIB, "a device"), limits(model_max_len=32768, **changes))
    assert plan.blocks_of(128) == windows
    assert plan.kv_bytes <= changes.get("kv_cache_memory", plan.budget - 14 * GIB)


def test_windows_make_room_for_the_longest_sequence() -> None:
    """131,072 tokens and windows for 512 do not fit beside each other into 3.6 GiB, those for 128 do."""
    card = DeviceMemory(int(19.6 * GIB), int(19.6 * GIB), "a GPU")
    plan = plan_memory(GPT_OSS, card, limits(max_model_len=131072))
    assert plan.kv_tokens >= plan.max_model_len == 131072
    assert plan.window_seqs == 128
    assert plan.kv_bytes <= plan.budget - 14 * GIB


def test_a_default_length_is_reduced_before_windows_are_for_one_request() -> None:
    """With windows for one request, a long prompt took all their blocks: no other could begin while it ran."""
    card = DeviceMemory(int(18.5 * GIB), int(18.5 * GIB), "a GPU")
    plan = plan_memory(GPT_OSS, card, limits())
    assert plan.max_model_len == plan.kv_tokens < 131072
    assert plan.window_seqs == 64
    assert plan.shares.window_bytes(plan.num_kv_blocks) <= plan.kv_bytes / 8


def test_a_window_that_nothing_fills_takes_as_many_blocks_as_full_attention() -> None:
    need = replace(GPT_OSS, windows=(WindowNeed(1 << 20, 24 << 10),))
    plan = plan_memory(need, DeviceMemory(20 * GIB, 20 * GIB, "a GPU"), limits())
    assert plan.blocks_of(1 << 20) == plan.num_kv_blocks == 4 * GIB // (2 * 16 * (24 << 10))


def test_layers_of_windows_alone_hold_any_length() -> None:
    need = replace(GPT_OSS, kv_per_token=0)
    plan = plan_memory(need, DeviceMemory(20 * GIB, 20 * GIB, "a GPU"), limits(swap_space=GIB))
    assert plan.max_model_len == 131072
    assert plan.kv_bytes == plan.blocks_of(128) * 16 * (24 << 10) < 4 * GIB
    assert plan.swap_blocks > 0
    assert plan.swap_bytes <= GIB


@pytest.mark.parametrize("asked", [{"max_model_len": 131072}, {"num_kv_blocks": 12_000}, {"kv_cache_memory": 5 * GIB}])
def test_the_setting_that_an_error_advises_fits_also_with_windows(asked: dict[str, int]) -> None:
    card = DeviceMemory(17 * GIB, 17 * GIB, "a GPU")
    with pytest.raises(DoesNotFitError, match=r"Try --(max-model-len|num-kv-blocks|kv-cache-memory) (\d+)") as error:
        plan_memory(GPT_OSS, card, limits(**asked))
    flag, value = next(part.split() for part in str(error.value).split("Try --")[1].split(", or "))[:2]
    fits = int(value.removesuffix("MiB")) << (20 if value.endswith("MiB") else 0)
    plan = plan_memory(GPT_OSS, card, limits(**{flag.replace("-", "_"): fits}))
    assert plan.kv_bytes <= plan.budget - 14 * GIB


def test_plan_shows_windows(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from octavo_engine.cli import main

    monkeypatch.setattr(resolved_config, "read_spec", lambda files: windowed(read_spec(files), 20))
    arguments = ["--kv-cache-memory", "512KiB", "--max-num-seqs", "4", "--max-num-batched-tokens", "64"]
    assert main(["plan", str(checkpoint), "--gpu-memory", "1GiB", *arguments]) == 0
    output = capsys.readouterr().out
    assert "KV per token   128 B\n" in output  # 2 * 1 layer * 2 heads * 8 * 4 bytes
    assert "windows of 20  28 blocks, 256 B a token\n" in output


@pytest.mark.parametrize(("name", "device"), [("auto", "cpu"), ("varlen", "cuda")])
def test_a_backend_without_sinks_is_not_taken_for_a_model_that_has_them(
    name: str, device: str, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU PyTorch's is left; its sinks and windows are held against float64 in test_attention.py."""
    from octavo_engine.attention import select
    from octavo_engine.config import EngineConfig
    from octavo_engine.model.source import resolve_model
    from octavo_engine.model.tensor_parallel.shard import Shard

    monkeypatch.setattr(select, "computes", lambda task: task.plain)
    monkeypatch.setattr(select, "cpu_kernels", object)
    monkeypatch.setattr(resolved_config, "choose_device", lambda *_: torch.device(device))
    monkeypatch.setattr(resolved_config, "check_capability", lambda _: None)
    monkeypatch.setattr(resolved_config, "multiplies_fp8", lambda _: False)
    files = resolve_model(str(checkpoint), None, lambda *_: None)
    config = EngineConfig(model=str(checkpoint), attention_backend=name)
    for sinks in (True, False):
        monkeypatch.setattr(resolved_config, "read_spec", lambda files, s=sinks: windowed(read_spec(files), 8, sinks=s))
        if device == "cpu":
            chosen = resolved_config.resolve_config(config, files, Shard(0, 1)).backend.name
            assert chosen == ("torch" if sinks else "cpu")
        elif sinks:
            with pytest.raises(ConfigurationError, match="neither latent attention nor softcap nor sinks"):
                resolved_config.resolve_config(config, files, Shard(0, 1))


def test_the_triton_kernels_say_the_same(checkpoint: Path) -> None:
    """In a process whose Triton interprets."""
    path = Path(__file__).with_name("interpreted_windows.py")
    root = path.parents[4]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join([str(root), *sys.path])}
    command = [sys.executable, str(path), str(checkpoint)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=root)
    assert result.returncode == 0, result.stdout[-8000:] + result.stderr[-2000:]
    outputs = json.loads(result.stdout)
    assert [cached for *_, cached in outputs] == [0, 16]
    entries = [[TokenLogprobs(token, x, 1, ()) for token, x in zip(*said, strict=True)] for _, *said, _ in outputs]
    answers = zip(outputs, entries, strict=True)
    assert_as_reference(WINDOW, [Completion(prompt, "", tokens, said) for (prompt, tokens, *_), said in answers])
