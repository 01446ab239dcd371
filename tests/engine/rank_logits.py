"""Runs one of several ranks over checkpoints; the first rank writes the logits into files.

Arguments: rank, size, the file to meet in, the folder for results, then checkpoints.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import torch
from stepper import Sequence, Stepper

from octavo_engine.model.collectives import connect
from octavo_engine.model.configuration import read_spec
from octavo_engine.model.gguf_blocks import stored_blocks
from octavo_engine.model.loader import load_model
from octavo_engine.model.shard import Shard
from octavo_engine.model.source import ModelFiles

CPU = torch.device("cpu")
TOKENS = torch.randint(0, 131, (24,), generator=torch.Generator().manual_seed(7)).tolist()


def logits_of(decoder) -> torch.Tensor:
    """Return the logits of a prompt of 22 tokens in two chunks and two more tokens one by one."""
    sequence, stepper = Sequence(TOKENS), Stepper(decoder)
    return torch.cat([stepper.step([(sequence, n)])[0] for n in (12, 10, 1, 1)])


def main() -> None:
    shard, (rendezvous, results, *checkpoints) = Shard(int(sys.argv[1]), int(sys.argv[2])), map(Path, sys.argv[3:])
    torch.set_num_threads(1)
    ranks = connect(shard, str(rendezvous), CPU, torch.float32)
    for path in checkpoints:
        files = ModelFiles("test", gguf=path) if path.suffix == ".gguf" else ModelFiles("test", directory=path)
        spec = read_spec(files)
        spec = replace(spec, quantization=stored_blocks(files, spec) or spec.quantization)
        decoder = load_model(files, spec, CPU, torch.float32, lambda *_: None, ranks)
        logits = logits_of(decoder)  # by all, kept by one
        if shard.rank == 0:
            torch.save(logits, results / f"{path.stem}.pt")


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads are not waited for
