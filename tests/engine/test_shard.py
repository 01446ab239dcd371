"""Several ranks compute what one computes, of every configuration, each with its share of the weights alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from checkpoints import CONFIGURATIONS, reference_model, save
from gguf_writer import write_gguf
from peak_memory import peak_memory
from rank_logits import logits_of

from octavo_engine.errors import ConfigurationError
from octavo_engine.model.collectives import Collectives
from octavo_engine.model.footprint import weight_bytes
from octavo_engine.model.shard import Shard, sharded
from octavo_engine.model.source import ModelFiles
from octavo_engine.model.spec import read_spec
from octavo_engine.model.weights import load_model

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("checkpoints")
    found = [save(reference_model(**changes), folder / name) for name, changes in CONFIGURATIONS.items()]
    return [*found, write_gguf(reference_model(attention_bias=True), folder / "gguf.gguf")]


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


@pytest.mark.parametrize(
    ("size", "names"), [(2, [*CONFIGURATIONS, "gguf"]), (4, ["tied", "gqa4", "gqa8", "attention_bias", "gguf"])]
)
def test_ranks_compute_what_one_computes(size, names, checkpoints, expected, tmp_path):
    """KV heads fewer than ranks (gqa8: one), and a vocabulary of 131 tokens that no size divides."""
    checkpoints = [path for path in checkpoints if path.stem in names]
    group_logits(size, checkpoints, tmp_path)
    for path in checkpoints:
        logits = torch.load(tmp_path / f"{path.stem}.pt")
        torch.testing.assert_close(logits, expected[path.stem], rtol=1e-4, atol=1e-4)
        assert torch.equal(logits.argmax(-1), expected[path.stem].argmax(-1))


def test_a_rank_takes_memory_for_its_share_alone(tmp_path):
    wide = {"hidden_size": 512, "intermediate_size": 2048, "num_attention_heads": 8, "num_key_value_heads": 8}
    files = ModelFiles("test", directory=save(reference_model(**wide), tmp_path))
    spec = read_spec(files)
    whole = weight_bytes(spec, torch.float32)
    with peak_memory() as peak:
        decoder = load_model(files, spec, CPU, torch.float32, lambda *_: None, Collectives(Shard(1, 4)))
    share = weight_bytes(decoder.spec, torch.float32)
    assert sum(parameter.nbytes for parameter in decoder.parameters()) == share < 0.26 * whole
    # The profiler counts the blueprint of the whole model, for which nothing is allocated.
    assert peak.bytes - whole < 2.1 * share < whole


@pytest.mark.parametrize(
    ("changes", "size", "message"),
    [
        ({}, 3, "--tensor-parallel-size 3 does not divide the model's 8 attention heads"),
        ({"intermediate_size": 98}, 4, "does not divide the model's 98 neurons"),
        (
            {"hidden_size": 96, "num_attention_heads": 12, "num_key_value_heads": 3},
            2,
            "neither divides the model's 3 KV heads nor is a multiple of them",
        ),
    ],
)
def test_what_cannot_be_cut_is_said(changes, size, message, tmp_path):
    spec = read_spec(ModelFiles("test", directory=save(reference_model(**changes), tmp_path)))
    with pytest.raises(ConfigurationError, match=message):
        sharded(spec, Shard(0, size))


def test_parts_cover_the_whole(tmp_path):
    """Rows of the vocabulary may be missing at the end; KV heads of neighbouring ranks may be the same."""
    spec = read_spec(ModelFiles("test", directory=save(reference_model(), tmp_path)))
    shards = [Shard(rank, 8) for rank in range(8)]
    assert [shard.first_kv_head(spec) for shard in shards] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [shard.first_token(spec) for shard in shards] == [0, 17, 34, 51, 68, 85, 102, 119]
    assert {sharded(spec, shard).kv_groups[0].num_kv_heads for shard in shards} == {1}
    assert {sharded(spec, shard).vocab_size for shard in shards} == {17}
