"""The process of one rank but the first: loads its shard, then computes every plan that the first one sends.

Started by `runner.ranks.Ranks` alone, with its job (config, files, memory plan) as a line of standard input.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from octavo_engine.config import EngineConfig
from octavo_engine.engine.load import Loading, load_worker
from octavo_engine.engine.target import choose_target
from octavo_engine.errors import EngineDeadError, OctavoError
from octavo_engine.model.shard import Shard
from octavo_engine.model.source import ModelFiles
from octavo_engine.runner.board import Board
from octavo_engine.runner.cores import use_cores
from octavo_engine.runner.memory import MemoryNeed, MemoryPlan
from octavo_engine.runner.plan_codec import decode_plan
from octavo_engine.runner.ranks import live_with, meeting_place

MODULE = "octavo_engine.engine.rank"

log = logging.getLogger("octavo.rank")


def encode_job(config: EngineConfig, files: ModelFiles, plan: MemoryPlan) -> bytes:
    """A rank's line of standard input."""
    return json.dumps([asdict(config), asdict(files), asdict(plan)], default=str).encode() + b"\n"


def decode_job(line: bytes) -> tuple[EngineConfig, ModelFiles, MemoryPlan]:
    """What `encode_job` was given."""
    config, files, plan = json.loads(line)
    paths: dict[str, Any] = {key: files[key] and Path(files[key]) for key in ("directory", "gguf")}
    return (
        EngineConfig(**config),
        ModelFiles(**{**files, **paths}),
        MemoryPlan(**{**plan, "need": MemoryNeed(**plan["need"])}),
    )


def _run(board: Board, shard: Shard, meeting: str) -> None:
    config, files, plan = decode_job(sys.stdin.buffer.readline())
    target = choose_target(config, files, shard)
    if target.device.type == "cpu":
        use_cores(os.environ, shard.size)

    def report(phase: str, ratio: float, _detail: str) -> None:
        board.set_loaded(shard.rank, ratio if phase == "loading" else 1.0)

    worker = load_worker(Loading(config, files, target, plan, shard, meeting), report).worker
    while message := board.receive(shard.rank):
        worker.launch(decode_plan(message))


def main() -> int:
    """Entry point: `… RANK SIZE MEMORY MEETING PARENT`, the last three being two file descriptors and a process."""
    rank, size, memory, meeting, parent = map(int, sys.argv[1:])
    for number in (signal.SIGINT, signal.SIGTERM):  # rank 0 says when to end
        signal.signal(number, signal.SIG_IGN)
    board = Board(memory, size)
    live_with(parent, board, rank)
    try:
        _run(board, Shard(rank, size), meeting_place(meeting))
    except OctavoError as error:
        board.fail(rank, error.exit_code, str(error))
        return error.exit_code
    except Exception as error:
        log.exception("rank %d died", rank)
        board.fail(rank, EngineDeadError.exit_code, f"{type(error).__name__}: {error}")
        return EngineDeadError.exit_code
    return 0


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # neither the heart nor gloo's threads must hold the process back
