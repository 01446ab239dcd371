"""The process of a rank other than the first: loads its shard, then computes every plan that the first rank sends.

Only `rank_processes.Ranks` starts it, with its job (config, files, log format) as a line of standard input. It reports
its device's memory; the first message that it receives is the memory plan, all others are steps and parts of adapters.
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
from octavo_engine.engine.startup.resolved_config import choose_device, resolve_config
from octavo_engine.engine.startup.worker_setup import WorkerSetup, set_up_worker
from octavo_engine.errors import EngineDeadError, OctavoError
from octavo_engine.model.lora.adapter import decode_write
from octavo_engine.model.source import ModelFiles
from octavo_engine.model.tensor_parallel.shard import Shard
from octavo_engine.process_setup import logs
from octavo_engine.process_setup.freed_memory import keep_returning_freed_memory, use_one_heap
from octavo_engine.runner.cpu_threads import configure_cpu_threads
from octavo_engine.runner.memory.device_memory import device_memory
from octavo_engine.runner.memory.kv_blocks import WindowNeed
from octavo_engine.runner.memory.memory_plan import MemoryNeed, MemoryPlan
from octavo_engine.runner.ranks.plan_codec import decode_plan
from octavo_engine.runner.ranks.rank_processes import rendezvous_path, tie_to_parent
from octavo_engine.runner.ranks.shm_queue import SharedMemoryQueue

MODULE = "octavo_engine.engine.startup.rank"

log = logging.getLogger("octavo.rank")


def encode_job(config: EngineConfig, files: ModelFiles, log_format: str | None) -> bytes:
    """Encode a rank's job as the line that it reads from standard input."""
    return json.dumps([asdict(config), asdict(files), log_format], default=str).encode() + b"\n"


def decode_job(line: bytes) -> tuple[EngineConfig, ModelFiles, str | None]:
    """Decode the result of `encode_job`."""
    config, files, log_format = json.loads(line)
    paths: dict[str, Any] = {key: files[key] and Path(files[key]) for key in ("directory", "gguf")}
    return EngineConfig(**config), ModelFiles(**{**files, **paths}), log_format


def encode_memory_plan(plan: MemoryPlan) -> bytes:
    """Encode the memory plan as the first message to a rank."""
    return json.dumps(asdict(plan)).encode()


def decode_memory_plan(message: bytes) -> MemoryPlan:
    """Decode the result of `encode_memory_plan`."""
    plan = json.loads(message)
    windows = tuple(WindowNeed(**window) for window in plan["need"]["windows"])
    return MemoryPlan(**{**plan, "need": MemoryNeed(**{**plan["need"], "windows": windows})})


def _run(queue: SharedMemoryQueue, shard: Shard, rendezvous: str) -> None:
    config, files, log_format = decode_job(sys.stdin.buffer.readline())
    if log_format is not None:
        logs.set_up_engine(log_format)
    memory = device_memory(choose_device(config.device, shard))
    queue.set_memory(shard.rank, memory.total, memory.free)
    plan = decode_memory_plan(queue.receive(shard.rank))
    resolved = resolve_config(config, files, shard)
    if resolved.device.type == "cpu":
        configure_cpu_threads(os.environ, shard.size)

    def report(phase: str, ratio: float, _detail: str) -> None:
        queue.set_loaded(shard.rank, ratio if phase == "loading" else 1.0)

    worker = set_up_worker(WorkerSetup(config, files, resolved, plan, shard, rendezvous), report).worker
    while message := queue.receive(shard.rank):
        if message.startswith(b"{"):
            worker.write_adapter(decode_write(message))
        else:
            worker.launch(decode_plan(message))


def main() -> int:
    """Entry point: `… RANK SIZE MEMORY RENDEZVOUS PARENT`, the last three being two file descriptors and a process."""
    rank, size, memory, rendezvous, parent = map(int, sys.argv[1:])
    for number in (signal.SIGINT, signal.SIGTERM):  # rank 0 decides when to end
        signal.signal(number, signal.SIG_IGN)
    use_one_heap()  # before the first thread
    queue = SharedMemoryQueue(memory, size)
    tie_to_parent(parent, queue, rank)
    keep_returning_freed_memory()
    try:
        _run(queue, Shard(rank, size), rendezvous_path(rendezvous))
    except OctavoError as error:
        queue.fail(rank, error.exit_code, str(error))
        return error.exit_code
    except Exception as error:
        log.exception("rank %d died", rank)
        queue.fail(rank, EngineDeadError.exit_code, f"{type(error).__name__}: {error}")
        return EngineDeadError.exit_code
    return 0


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # neither the heartbeat's nor gloo's threads must keep the process alive
