"""Several ranks compute the results of one rank, for every configuration, each with only its part of the weights."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from checkpoints import CONFIGURATIONS, UNEVEN, reference_model, save
from gguf_writer import write_gguf
from peak_memory import peak_memory
from rank_logits import group_logits, logits_of

from octavo_engine.engine.startup.resolved_config import make_blueprint
from octavo_engine.errors import ConfigurationError, ModelLoadError
from octavo_engine.model.configuration.read_spec import read_spec
from octavo_engine.model.footprint import weight_bytes
from octavo_engine.model.loader import load_model
from octavo_engine.model.source import ModelFiles
from octavo_engine.model.spec import AttentionSpec
from octavo_engine.model.tensor_parallel.collectives import Collectives
from octavo_engine.model.tensor_parallel.shard import Shard, check_size

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
    unsharded, shares = weight_bytes(make_blueprint(spec, torch.float32, Shard())), []
    for rank in range(size):
        with peak_memory() as peak:
            decoder = load_model(files, spec, CPU, torch.float32, lambda *_: None, Collectives(Shard(rank, size)))
        share = weight_bytes(make_blueprint(spec, torch.float32, Shard(rank, size)))
        largest = max(parameter.nbytes for parameter in decoder.parameters())
        assert sum(parameter.nbytes for parameter in decoder.parameters()) == share
        # The profiler counts the file, which is mapped, as memory.
        assert share <= peak.bytes - unsharded < share + 2 * largest + 10_000 < unsharded
        shares.append(share)
    assert shares[0] == max(shares), "the memory plan counts the first rank"
    assert unsharded / size < shares[0] < 1.2 * unsharded / size


@pytest.mark.parametrize(
    ("changes", "size", "message"),
    [
        ({}, 9, "--tensor-parallel-size 9 is more than the model's 8 attention heads, .* take 8 at most"),
        ({"intermediate_size": 5}, 6, "is more than the model's 5 rows"),
    ],
)
def test_what_cannot_be_cut_is_reported(changes, size, message, tmp_path):
    spec = read_spec(ModelFiles("test", directory=save(reference_model(**changes), tmp_path)))
    with pytest.raises(ConfigurationError, match=message):
        check_size(spec, size)


def test_a_size_that_rounds_to_nothing_is_no_matter_of_ranks(tmp_path):
    sizes = {"intermediate_size": 64, "block_auto_adjust_ff_dim": True, "block_multiple_of": 1}
    path = save(reference_model("Lfm2", **sizes, block_ffn_dim_multiplier=1.0), tmp_path)
    config = json.loads((path / "config.json").read_text()) | {"block_ffn_dim_multiplier": 0.01}
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match="gives a layer 0 rows"):
        check_size(read_spec(ModelFiles("test", directory=path)), 1)


def test_a_vocabulary_may_end_before_the_ranks_do(tmp_path):
    spec = read_spec(ModelFiles("test", directory=save(reference_model(), tmp_path)))
    shards = [Shard(rank, 8) for rank in range(8)]
    parts = [shard.vocabulary(spec.vocab_size) for shard in shards]
    assert [part.start for part in parts] == [0, 17, 34, 51, 68, 85, 102, 119]
    assert parts[-1] == range(119, 131)
    heads = [make_blueprint(spec, torch.float32, shard).head.weight for shard in shards]
    assert {len(weight) for weight in heads} == {17}
    assert Shard(5, 6).vocabulary(4) == range(4, 4)


def attention_of(heads: int, kv_heads: int) -> AttentionSpec:
    return AttentionSpec(num_heads=heads, num_kv_heads=kv_heads, head_dim=8, scale=1.0, rope=None)


def test_parts_cover_everything_and_none_is_larger_than_the_first():
    """Every way to deal up to eight KV heads with up to seven query heads each to as many ranks as query heads."""
    for kv_heads, per_kv_head, intermediate in product(range(1, 9), range(1, 8), (64, 110, 1536)):
        heads = kv_heads * per_kv_head
        attention = attention_of(heads, kv_heads)
        for size in range(2, heads + 1):
            shards = [Shard(rank, size) for rank in range(size)]
            assert [head for shard in shards for head in shard.heads(attention)] == list(range(heads))
            rows = [row for shard in shards for row in shard.intermediate(intermediate)]
            assert rows == list(range(intermediate))
            assert min(len(shard.intermediate(intermediate)) for shard in shards) > 0
            assert max(len(shard.intermediate(intermediate)) for shard in shards) == len(
                shards[0].intermediate(intermediate)
            )
            firsts = [
                head for shard in shards if shard.first_with_kv_heads(attention) for head in shard.kv_heads(attention)
            ]
            assert firsts == list(range(kv_heads)), "each KV head counts once"
            for shard in shards:
                check_heads(attention, shard, shards[0])


def check_heads(attention: AttentionSpec, shard: Shard, first: Shard) -> None:
    """Each of its query heads reads the KV head that is its own in the unsharded model; the first rank has no less."""
    heads, own = shard.heads(attention), shard.kv_heads(attention)
    assert len(heads) % len(own) == 0 < len(heads)
    for index, head in enumerate(heads):
        assert own[index * len(own) // len(heads)] == head * attention.num_kv_heads // attention.num_heads
    assert len(heads) <= len(first.heads(attention))
    assert len(own) <= len(first.kv_heads(attention))


def test_parts_are_even_where_they_can_be():
    llama, smollm2 = (attention_of(32, 8), 14336), (attention_of(9, 3), 1536)
    dealt = {
        (llama, 4): [(8, 2, 3584)] * 4,
        (llama, 16): [(2, 1, 896)] * 16,
        (smollm2, 2): [(6, 2, 768), (3, 1, 768)],
        (smollm2, 4): [(3, 1, 384), (3, 1, 384), (2, 1, 384), (1, 1, 384)],
        (smollm2, 9): [(1, 1, 176)] * 6 + [(1, 1, 160)] * 3,
    }
    for ((attention, intermediate), size), expected in dealt.items():
        shards = [Shard(rank, size) for rank in range(size)]
        found = [
            (len(shard.heads(attention)), len(shard.kv_heads(attention)), len(shard.intermediate(intermediate)))
            for shard in shards
        ]
        assert sorted(found, reverse=True) == expected
        assert found[0] == expected[0]


def test_a_rank_caches_its_own_heads(tmp_path):
    spec = read_spec(ModelFiles("test", directory=save(reference_model(num_key_value_heads=4), tmp_path)))
    groups = [Shard(rank, 3).kv_groups(spec)[0] for rank in range(3)]
    assert [group.num_kv_heads for group in groups] == [2, 1, 1]
    assert {replace(group, num_kv_heads=4) for group in groups} == set(spec.kv_groups)
