"""A stand-in for a rank's process that fails: it cannot load, or it ends without a message."""

from __future__ import annotations

import os
import sys

from octavo_engine.errors import DoesNotFitError
from octavo_engine.runner.ranks.shm_queue import SharedMemoryQueue

if __name__ == "__main__":
    rank, size, memory, *_ = map(int, sys.argv[1:])
    if sys.stdin.readline() == "silent\n":
        os._exit(7)
    SharedMemoryQueue(memory, size).fail(rank, DoesNotFitError.exit_code, "does not fit: there are only 3 MiB")
    os._exit(DoesNotFitError.exit_code)
