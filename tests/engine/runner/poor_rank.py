"""A stand-in for a rank's process whose device has 1 GiB with 228 MiB free; it writes what it receives into a file.

An environment variable names the file.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from octavo_engine.errors import EngineDeadError
from octavo_engine.runner.ranks.shm_queue import SharedMemoryQueue

TOTAL, FREE = 1 << 30, 228 << 20

if __name__ == "__main__":
    rank, size, memory, *_ = map(int, sys.argv[1:])
    queue = SharedMemoryQueue(memory, size)
    queue.set_memory(rank, TOTAL, FREE)
    Path(os.environ["POOR_RANK_GOT"]).write_bytes(queue.receive(rank))
    queue.fail(rank, EngineDeadError.exit_code, "has seen enough")
    os._exit(EngineDeadError.exit_code)
