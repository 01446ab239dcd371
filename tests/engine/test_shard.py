"""Several ranks compute what one computes, of every configuration, each with its share of the weights alone."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from checkpoints import CONFIGURATIONS, UNEVEN, reference_model, save
from gguf_writer import write_gguf
from peak_memory import peak_memory
from rank_logits import logits_of

from octavo_engine.errors import ConfigurationError
from octavo_engine.model.collectives import Collectives
from octavo_engine.model.footprint import weight_bytes
from octavo_engine.model.shard import Shard, sharded
from octavo_engine.model.source import ModelFiles
from octavo_engine.model.spec import ModelSpec, read_spec
from octavo_engine.model.weights import load_model

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("checkpoints")
    found = [save(reference_model(**changes), folder / name) for name, changes in CONFIGURATIONS.items()]
    found.append(save(reference_model(**UNEVEN, mlp_bias=True), folder / "uneven"))
    ggufs = {"gguf": {"attention_bias": True}, "uneven_gguf": UNEVEN}
    return [
        *found,
        *(write_gguf(reference_model(**changes), folder / f"{name}.gguf") for name, changes in ggufs.items()),
    ]


def files_of(path: Path) -> ModelFiles:
    return ModelFiles("test", gguf=path) if path.suffix == ".gguf" else ModelFiles("test", directory=path)


@pytest.fixture(scope="module")
def expected(checkpoints: list[Path]) -> dict[str, torch.Tensor]:
    """The logits of each checkpoint by one rank."""
    found = {}
    for path in checkpoints:
        files = files_of(path)
        found[path.stem] = logits_of(load_model(files, read_spec(files), CPU, torch.float32, lambda *_: None))
    return found


def group_logits(size: int, checkpoints: list[Path], results: Path) -> None:
    """Have `size` ranks compute the logits of each checkpoint, into a file of its name in `results`."""
    script = [sys.executable, str(Path(__file__).with_name("rank_logits.py"))]
    processes = [
        subprocess.Popen([*script, str(rank), str(size), str(results / "meeting"), str(results), *checkpoints])
        for rank in range(size)
    ]
    assert [process.wait(200) for process in processes] == [0] * size


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_compute_what_one_computes(size, checkpoints, expected, tmp_path):
    """KV heads fewer than ranks (gqa8: one; uneven: three for four), and 131 tokens, which no size divides."""
    group_logits(size, checkpoints, tmp_path)
    for path in checkpoints:
        logits = torch.load(tmp_path / f"{path.stem}.pt")
        torch.testing.assert_close(logits, expected[path.stem], rtol=1e-4, atol=1e-4)
        assert torch.equal(logits.argmax(-1), expected[path.stem].argmax(-1))


@pytest.mark.parametrize("size", [2, 4])
def test_a_rank_takes_memory_for_its_share_alone(size, tmp_path):
    """Each rank of an uneven group, while it loads: its share and one piece of a matrix, less than the whole model."""
    wide = {"hidden_size": 576, "intermediate_size": 2000, "num_attention_heads": 9, "num_key_value_heads": 3}
    files = ModelFiles("test", directory=save(reference_model(**wide), tmp_path))
    spec = read_spec(files)
    whole, shares = weight_bytes(spec, torch.float32), []
    for rank in range(size):
        with peak_memory() as peak:
            decoder = load_model(files, spec, CPU, torch.float32, lambda *_: None, Collectives(Shard(rank, size)))
        share = weight_bytes(decoder.spec, torch.float32)
        largest = max(parameter.nbytes for parameter in decoder.parameters())
        assert sum(parameter.nbytes for parameter in decoder.parameters()) == share
        # The profiler counts the blueprint of the whole model, for which nothing is allocated.
        assert share <= peak.bytes - whole < share + 2 * largest + 10_000 < whole
        shares.append(share)
    assert shares[0] == max(shares), "the memory plan counts the first rank"
    assert whole / size < shares[0] < 1.2 * whole / size


@pytest.mark.parametrize(
    ("changes", "size", "message"),
    [
        ({}, 9, "--tensor-parallel-size 9 is more than the model's 8 attention heads, .* take 8 at most"),
        ({"intermediate_size": 5}, 6, "is more than the model's 5 neurons"),
    ],
)
def test_what_cannot_be_cut_is_said(changes, size, message, tmp_path):
    spec = read_spec(ModelFiles("test", directory=save(reference_model(**changes), tmp_path)))
    with pytest.raises(ConfigurationError, match=message):
        sharded(spec, Shard(0, size))


def test_a_vocabulary_may_end_before_the_ranks_do(tmp_path):
    spec = read_spec(ModelFiles("test", directory=save(reference_model(), tmp_path)))
    shards = [Shard(rank, 8) for rank in range(8)]
    assert [shard.first_token(spec) for shard in shards] == [0, 17, 34, 51, 68, 85, 102, 119]
    assert {sharded(spec, shard).vocab_size for shard in shards} == {17}


def test_parts_cover_the_whole_and_none_is_larger_than_the_first(tmp_path):
    """Every way to deal up to eight KV heads with up to seven query heads each to as many ranks as query heads."""
    tiny = read_spec(ModelFiles("test", directory=save(reference_model(), tmp_path)))
    for kv_heads, per_kv_head, neurons in product(range(1, 9), range(1, 8), (64, 110, 1536)):
        heads = kv_heads * per_kv_head
        spec = replace(tiny, num_heads=heads, num_kv_heads=kv_heads, intermediate_size=neurons)
        for size in range(2, heads + 1):
            shards = [Shard(rank, size) for rank in range(size)]
            assert [head for shard in shards for head in shard.heads(spec)] == list(range(heads))
            assert [neuron for shard in shards for neuron in shard.neurons(spec)] == list(range(neurons))
            first = sharded(spec, shards[0])
            for shard in shards:
                check_part(spec, shard, first)


def check_part(spec: ModelSpec, shard: Shard, first: ModelSpec) -> None:
    """Each of its query heads reads the KV head that is its own in the whole model; the first rank has no less."""
    part, own = sharded(spec, shard), shard.kv_heads(spec)
    assert part.num_heads % part.num_kv_heads == 0 < part.num_heads
    for index, head in enumerate(shard.heads(spec)):
        assert own[index * part.num_kv_heads // part.num_heads] == head * spec.num_kv_heads // spec.num_heads
    assert part.num_heads <= first.num_heads
    assert part.num_kv_heads == part.kv_groups[0].num_kv_heads <= first.num_kv_heads
    assert 0 < part.intermediate_size <= first.intermediate_size


def test_parts_are_even_where_they_can_be(tmp_path):
    tiny = read_spec(ModelFiles("test", directory=save(reference_model(), tmp_path)))
    llama = replace(tiny, num_heads=32, num_kv_heads=8, intermediate_size=14336)
    smollm2 = replace(tiny, num_heads=9, num_kv_heads=3, intermediate_size=1536)
    dealt = {
        (llama, 4): [(8, 2, 3584)] * 4,
        (llama, 16): [(2, 1, 896)] * 16,
        (smollm2, 2): [(6, 2, 768), (3, 1, 768)],
        (smollm2, 4): [(3, 1, 384), (3, 1, 384), (2, 1, 384), (1, 1, 384)],
        (smollm2, 9): [(1, 1, 176)] * 6 + [(1, 1, 160)] * 3,
    }
    for (spec, size), expected in dealt.items():
        parts = [sharded(spec, Shard(rank, size)) for rank in range(size)]
        found = [(part.num_heads, part.num_kv_heads, part.intermediate_size) for part in parts]
        assert sorted(found, reverse=True) == expected
        assert found[0] == expected[0]
