"""Computes the logits of checkpoints by several ranks, each a process; the first rank writes them into files.

Run as a program it is one of the ranks: its rank, their number, the folder for results, then checkpoints.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch
from stepper import Sequence, Stepper

from octavo_engine.model.configuration.gguf_blocks import stored_blocks
from octavo_engine.model.configuration.read_spec import read_spec
from octavo_engine.model.loader import load_model
from octavo_engine.model.source import ModelFiles
from octavo_engine.model.tensor_parallel.collectives import connect
from octavo_engine.model.tensor_parallel.shard import Shard

CPU = torch.device("cpu")
TOKENS = torch.randint(0, 131, (24,), generator=torch.Generator().manual_seed(7)).tolist()


def logits_of(decoder) -> torch.Tensor:
    """Return the logits of a prompt of 22 tokens in two chunks and two more tokens one by one."""
    sequence, stepper = Sequence(TOKENS), Stepper(decoder)
    return torch.cat([stepper.step([(sequence, n)])[0] for n in (12, 10, 1, 1)])


def group_logits(size: int, checkpoints: list[Path], results: Path) -> None:
    """Have `size` ranks compute the logits of each checkpoint, into a file of its name in `results`.

    The processes are forked from one that has imported PyTorch and the loader: that would take each of them 3 s.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["octavo_engine.model.loader", "octavo_engine.model.tensor_parallel.collectives"])
    shards = [Shard(number, size) for number in range(size)]
    ranks = [context.Process(target=_compute, args=(shard, checkpoints, results), daemon=True) for shard in shards]
    for rank in ranks:
        rank.start()
    end = time.monotonic() + 400
    try:
        for rank in ranks:
            rank.join(max(0, end - time.monotonic()))
        assert [rank.exitcode for rank in ranks] == [0] * size
    finally:
        for rank in ranks:
            rank.kill()


def _compute(shard: Shard, checkpoints: list[Path], results: Path) -> None:
    torch.set_num_threads(1)
    ranks = connect(shard, str(results / "rendezvous"), CPU, torch.float32)
    for path in checkpoints:
        files = ModelFiles("test", gguf=path) if path.suffix == ".gguf" else ModelFiles("test", directory=path)
        spec = read_spec(files)
        spec = replace(spec, quantization=stored_blocks(files, spec) or spec.quantization)
        decoder = load_model(files, spec, CPU, torch.float32, lambda *_: None, ranks)
        logits = logits_of(decoder)  # by all, kept by one
        if shard.rank == 0:
            torch.save(logits, results / f"{path.stem}.pt")
    os._exit(0)  # gloo's threads are not waited for


if __name__ == "__main__":
    _compute(Shard(int(sys.argv[1]), int(sys.argv[2])), [Path(each) for each in sys.argv[4:]], Path(sys.argv[3]))
