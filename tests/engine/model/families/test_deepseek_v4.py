"""DeepSeek V4: compressed keys are cached, shared, swapped and planned like other keys; unknown fields are refused.

The same holds for the keys from which DeepSeek V3.2's indexer, and GLM-5's, chooses tokens.

test_families.py compares its answers with transformers': alone, beside other requests, and by two ranks.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import SIZES
from family_cases import CASES
from family_cases.compressed import _HEAVY, _SLIDING, _SPARSE
from family_pairs import Pair, load, make_pair, spec_of
from peak_memory import peak_memory
from rank_logits import TOKENS, group_logits
from reference import assert_same
from safetensors.torch import load_file, save_file
from stepper import Sequence, Stepper

from octavo_engine import LLM, SamplingParams
from octavo_engine.attention import token_rows
from octavo_engine.errors import ConfigurationError, ModelLoadError
from octavo_engine.model import footprint
from octavo_engine.model.configuration.read_spec import read_spec
from octavo_engine.model.source import ModelFiles

SIZE = {"hidden_size": 4096, "vocab_size": 200}
ARCHITECTURE = "DeepseekV4ForCausalLM"
INDEXED = ["deepseek-v32", "glm-moe-dsa", "hy-v4"]
V4 = [name for name, case in CASES.items() if case.family == "DeepseekV4"]
GREEDY = SamplingParams(max_tokens=24, temperature=0.0, logprobs=20, ignore_eos=True)
SETTINGS: dict[str, Any] = {"device": "cpu", "dtype": "float32", "max_model_len": 160, "max_num_batched_tokens": 32}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Pair]:
    """Return a function that makes a case's pair by its name, once."""
    folder = tmp_path_factory.mktemp("v4")
    return cache(lambda name: make_pair(name, folder))


@pytest.mark.parametrize("name", ["deepseek-v4", "glm-moe-dsa"])
def test_sixteen_are_swapped_and_go_on_from_what_others_computed(name: str, pairs: Callable[[str], Pair]) -> None:
    """Half of the prompts begin as the other half, and all come a second time with their answers."""
    pair, draw = pairs(name), random.Random(2)
    first = [[draw.randrange(SIZES["vocab_size"]) for _ in range(5 + 7 * number)] for number in range(8)]
    first += [[*prompt, draw.randrange(SIZES["vocab_size"])] for prompt in first]
    llm = LLM(str(pair.directory), **SETTINGS, max_num_seqs=6, num_kv_blocks=24, swap_space=1 << 20)
    llm._loop._scheduler.planner.cost.token_seconds = 1.0  # so that swapping is always cheaper
    try:
        answers = llm.generate(first, GREEDY)
        second = [prompt + answer.token_ids + [5, 7, 9] for prompt, answer in zip(first, answers, strict=True)]
        again, stats = llm.generate(second, GREEDY), llm.report()
    finally:
        llm.close()
    assert_same(pair.model, [*answers, *again], 24)
    assert stats.swapped_in_blocks > 0
    assert sum(answer.cached_tokens for answer in [*answers, *again]) > 0


def test_draft_tokens_change_nothing(pairs: Callable[[str], Pair]) -> None:
    """Rejected ones leave keys behind, compressed ones too, that the next tokens write anew."""
    pair = pairs("deepseek-v4")
    prompts = [TOKENS * 2, TOKENS[:7] * 5, TOKENS[3:13] * 3]
    drafts = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 2, "prompt_lookup_min": 1}
    llm = LLM(str(pair.directory), **SETTINGS, max_num_seqs=3, speculative_config=json.dumps(drafts))
    try:
        answers, stats = llm.generate(prompts, GREEDY), llm.report()
    finally:
        llm.close()
    assert_same(pair.model, answers, 24)
    assert stats.draft_tokens > stats.accepted_tokens


def test_a_step_may_sample_nothing(pairs: Callable[[str], Pair]) -> None:
    """A chunk in the middle of a prompt alone: there is no token whose vectors are to become one."""
    assert len(Stepper(load(pairs("deepseek-v4"), torch.float32)).step([(Sequence([7] * 20), 10)], sample=[])[0]) == 0


def test_four_ranks_compute_what_transformers_computes(pairs: Callable[[str], Pair], tmp_path: Path) -> None:
    """Some have whole groups of heads, some a part of one."""
    group_logits(4, [pairs(name).directory for name in V4], tmp_path)
    for name in V4:
        with torch.inference_mode():
            expected = pairs(name).model(torch.tensor([TOKENS])).logits[0].float().log_softmax(-1)
        logits = torch.load(tmp_path / f"{name}.pt").log_softmax(-1)
        assert torch.equal(logits.argmax(-1), expected.argmax(-1)), name
        assert (logits - expected).abs().max() < 1e-3, name


@pytest.mark.parametrize("name", [*V4, *INDEXED])
def test_long_contexts_take_no_more_memory_than_planned(
    name: str, pairs: Callable[[str], Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk behind a long context, beside decodes: what queries gather is the largest part of it. In tiles it is
    less, and gives the same."""
    decoder, logits = load(pairs(name), torch.float32), []
    for most in (token_rows.TILE_NUMBERS, 1 << 16):
        monkeypatch.setattr(token_rows, "TILE_NUMBERS", most)
        stepper, long, short = Stepper(decoder), Sequence([7] * 500), [Sequence([5] * 60) for _ in range(8)]
        stepper.step([(long, 400), *((sequence, 59) for sequence in short)])
        with peak_memory() as peak:
            logits += stepper.step([(long, 100), *((sequence, 1) for sequence in short)], sample=[50, 99, 107])
        scratch = footprint.compressed_attention_bytes(decoder, 108, 500)
        assert 0 < peak.bytes <= footprint.step_bytes(decoder, 108, 9, scratch)
    torch.testing.assert_close(*logits)


def test_the_cache_is_allocated_as_planned(pairs: Callable[[str], Pair]) -> None:
    """Compressed keys as full attention, and all other rows as windows."""
    llm = LLM(str(pairs("deepseek-v4").directory), **SETTINGS, max_num_seqs=3, num_kv_blocks=50)
    try:
        cache, pools = llm._loop._executor._worker._cache, llm._loop._scheduler.memory.pools  # type: ignore[attr-defined]
    finally:
        llm.close()
    blocks = [len(cache.tensors(index)[0]) for index in range(len(cache.groups))]
    assert blocks == [pool.num_blocks for pool in pools]
    for index, group in enumerate(cache.groups):
        allocated = sum(tensor.nbytes for tensor in cache.tensors(index))
        assert allocated == group.bytes_per_token(torch.float32) * 16 * blocks[index]


def test_published_files_are_read_as_transformers_converts_them(pairs: Callable[[str], Pair], tmp_path: Path) -> None:
    """Their fields and the names of their tensors are DeepSeek's own."""
    published = {
        "compress_ratios": [0, 4, 128, 0],
        "num_hash_layers": 1,
        "rope_scaling": {"type": "yarn", "factor": 16, "original_max_position_embeddings": 65536, "beta_fast": 32},
        "qk_rope_head_dim": 64,
        "num_nextn_predict_layers": 1,
    }
    from transformers import DeepseekV4Config

    sizes = {**SIZE, "num_hidden_layers": 3, "max_position_embeddings": 1 << 20, "rope_theta": 1e4}
    converted = DeepseekV4Config(**sizes, **published).to_dict()
    same = {**converted, "architectures": [ARCHITECTURE], "dtype": "bfloat16"}
    assert "rope_scaling" not in same and same["layer_types"] == [_SLIDING, _SPARSE, _HEAVY]
    assert spec_of(tmp_path, ARCHITECTURE, **sizes, **published) == spec_of(tmp_path, ARCHITECTURE, **same)

    stored = load_file(pairs("deepseek-v4").directory / "model.safetensors")
    renamed = {name.removeprefix("model."): values for name, values in stored.items()}
    for name in [name for name in renamed if name.startswith(("embed_tokens.", "hc_head."))]:
        short = name.replace("embed_tokens", "embed").replace("hc_head.hc_", "hc_head_")
        renamed[short] = renamed.pop(name)
    folder = tmp_path / "published"
    folder.mkdir()
    save_file(renamed | {"mtp.0.hc_head_fn": torch.ones(3)}, folder / "model.safetensors")
    (folder / "config.json").write_bytes((pairs("deepseek-v4").directory / "config.json").read_bytes())
    found = load(Pair(CASES["deepseek-v4"], None, folder), torch.float32).state_dict()
    expected = load(pairs("deepseek-v4"), torch.float32).state_dict()
    assert all(torch.equal(found[name], values) for name, values in expected.items())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scoring_func": "softmax"}, "scoring_func 'softmax' is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported for experts"),
        ({"expert_dtype": "fp4"}, "expert_dtype 'fp4' is not supported"),
        ({"o_groups": 7}, "o_groups 7 does not divide num_attention_heads 64"),
        ({"index_head_dim": 32}, "index_head_dim 32 is not between 64 and 1024"),
        ({"num_hidden_layers": 2, "layer_types": [_SPARSE, "full_attention"]}, "full_attention"),
        ({"num_hidden_layers": 2, "mlp_layer_types": ["moe", "dense"]}, "mlp_layer_types ['moe', 'dense'] is not"),
        ({"compress_ratios": [7] * 43}, "compress_ratios"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2}}, "rope_type 'dynamic' is not supported"),
        ({"partial_rotary_factor": 0.135}, "partial_rotary_factor 0.135 rotates 69"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError) as caught:
        spec_of(tmp_path, ARCHITECTURE, **SIZE, **changes)
    assert message in str(caught.value)


def test_a_table_that_names_other_experts_is_refused(pairs: Callable[[str], Pair], tmp_path: Path) -> None:
    directory = pairs("deepseek-v4").directory
    stored = load_file(directory / "model.safetensors")
    (tmp_path / "config.json").write_bytes((directory / "config.json").read_bytes())
    for wrong in (torch.full((131, 3), 6), torch.full((131, 3), -1)):
        save_file({**stored, "model.layers.0.ffn.gate.tid2eid": wrong}, tmp_path / "model.safetensors")
        with pytest.raises(ModelLoadError, match=r"tid2eid' names experts .* and there are 0 to 5"):
            load(Pair(CASES["deepseek-v4"], None, tmp_path), torch.float32)


def test_the_cache_is_not_kept_in_8_bits(pairs: Callable[[str], Pair]) -> None:
    with pytest.raises(ConfigurationError, match="--kv-cache-dtype fp8: DeepseekV4ForCausalLM"):
        LLM(str(pairs("deepseek-v4").directory), **SETTINGS, kv_cache_dtype="fp8")
    with pytest.raises(ConfigurationError, match="--attention-backend triton: it does not compute compressed"):
        LLM(str(pairs("deepseek-v4").directory), **SETTINGS, attention_backend="triton")


def test_one_key_of_many_tokens_takes_its_share_of_a_block(pairs: Callable[[str], Pair]) -> None:
    """Blocks of 16 tokens end 4 keys of 4 tokens and at most 2 of 12."""
    spec = read_spec(ModelFiles("test", directory=pairs("deepseek-v4").directory))
    sparse, heavy = (group for group in spec.kv_groups if group.window is None)
    assert {sparse.rate: sparse.rows_of_block(16), heavy.rate: heavy.rows_of_block(16)} == {4: 4, 12: 2}
    assert footprint.kv_bytes_per_token(spec.kv_groups, torch.float32) == (24 + 12) * 4 // 4 + 2 * 24 * 4 // 16
