"""Starts, feeds, watches and ends the processes of ranks 1 and up of a model. Rank 0 runs in this process."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar

from octavo_engine.errors import BY_EXIT_CODE, EngineDeadError, OctavoError
from octavo_engine.process_setup.signals import how_it_ended
from octavo_engine.runner.memory.device_memory import DeviceMemory
from octavo_engine.runner.ranks.shm_queue import SharedMemoryQueue

_CHECK_EVERY = 0.2
_ASK_EVERY = 0.02
_BEAT_EVERY = 0.25
_SILENCE = 3.0
"""Seconds without a heartbeat after which a rank counts as stopped."""
_SILENCE_LOADING = 60.0
"""The same while a rank loads, when reading a large tensor may keep the interpreter from sending heartbeats."""
_CAUSE_SECONDS = 1.0
"""Seconds within which a rank's death is noticed after the broken connection that it causes."""
_END_SECONDS = 3.0
_KILLED_SECONDS = 0.5
"""Seconds to wait for all killed ranks together: a GPU's driver may take time to clean up after each."""
_PR_SET_PDEATHSIG = 1

T = TypeVar("T")


class Ranks:
    """The other ranks of a group of `size`, run by the Python module `module`; `job` is a line for its standard input.

    Make it in a thread that lives as long as the ranks should: the kernel kills them when that thread ends.
    """

    def __init__(self, size: int, module: str, job: bytes) -> None:
        self.size = size
        memory, rendezvous = SharedMemoryQueue.create(size), os.memfd_create("octavo-rendezvous")
        self.queue = SharedMemoryQueue(memory, size)
        self.rendezvous = rendezvous_path(rendezvous)
        self._ready = False
        self._processes = {
            rank: subprocess.Popen(
                [sys.executable, "-m", module, *map(str, (rank, size, memory, rendezvous, os.getpid()))],
                stdin=subprocess.PIPE,
                pass_fds=(memory, rendezvous),
            )
            for rank in range(1, size)
        }
        for process in self._processes.values():
            if process.stdin is not None:
                process.stdin.write(job)
                process.stdin.flush()
        os.close(memory)
        # `rendezvous` stays open: torch.distributed's store opens it again by its number when the interpreter ends. If
        # it were closed, the number might belong to another file by then, into which the store would write.
        self._looked = time.monotonic()
        self._seen = dict.fromkeys(self._processes, (0, self._looked))

    def report_own(self, phase: str, ratio: float, _detail: str) -> None:
        """Report the loading progress of rank 0."""
        self.queue.set_loaded(0, ratio if phase == "loading" else 1.0)

    def memories(self) -> list[DeviceMemory]:
        """Wait until each other rank has reported its device's memory, and return them."""
        while not all(self.queue.memory(rank) for rank in self._processes):
            self.check()
            time.sleep(_ASK_EVERY)
        reported = {rank: self.queue.memory(rank) or (0, 0) for rank in self._processes}
        return [DeviceMemory(total, free, f"the device of rank {rank}") for rank, (total, free) in reported.items()]

    def ready(self) -> None:
        """Note that all ranks are loaded: from now on a short silence counts as a failure."""
        self._ready = True

    def send(self, message: bytes) -> None:
        """Send `message` to all other ranks; an empty message ends them."""
        self.queue.send(message, self.check)

    def wait(self, future: Future[T], meanwhile: Callable[[], None] = lambda: None) -> T:
        """Return the result of work that needs all ranks; raise a failed rank's error even if `future` never ends.

        `meanwhile` is called every `_CHECK_EVERY` seconds.
        """
        while not future.done():
            futures.wait([future], timeout=_CHECK_EVERY)
            meanwhile()
            self.check()
        error = future.exception()
        if error is not None and not isinstance(error, OctavoError):
            self._raise_cause()
        return future.result()

    def _raise_cause(self) -> None:
        """Raise the error of a rank that has died; its death may be noticed a moment later than its effect."""
        until = time.monotonic() + _CAUSE_SECONDS
        while time.monotonic() < until:
            self.check()
            time.sleep(_ASK_EVERY)

    def check(self) -> None:
        """Raise an OctavoError unless all ranks live: the error that a rank reported, or how its process ended."""
        now = time.monotonic()
        if now - self._looked > _SILENCE / 2:  # this process was suspended, or `check` was not called
            self._seen = {rank: (beats, now) for rank, (beats, _) in self._seen.items()}
        self._looked = now
        for rank, process in self._processes.items():
            if process.poll() is not None:
                raise self._error_of(rank, process.returncode)
            beats, since = self._seen[rank]
            if self.queue.beats(rank) != beats:
                self._seen[rank] = self.queue.beats(rank), now
            elif now - since > (_SILENCE if self._ready else _SILENCE_LOADING):
                raise EngineDeadError(
                    f"rank {rank} of {self.size} (process {process.pid}) is stalled: no sign of life for "
                    f"{now - since:.0f} s"
                )

    def _error_of(self, rank: int, code: int) -> OctavoError:
        if (failure := self.queue.failure(rank)) is not None:
            return BY_EXIT_CODE.get(failure[0], EngineDeadError)(f"rank {rank} of {self.size}: {failure[1]}")
        return EngineDeadError(f"rank {rank} of {self.size} {how_it_ended(code)}")

    def end(self) -> None:
        """Ask the ranks to end, which is quick unless something is wrong, and kill those that do not."""
        try:
            self.send(b"")
            for process in self._processes.values():
                process.wait(_END_SECONDS)
        except (OctavoError, subprocess.TimeoutExpired):
            pass
        self.kill()

    def kill(self) -> None:
        """Kill all other ranks, then wait for them, at most `_KILLED_SECONDS` in all."""
        for process in self._processes.values():
            process.kill()
        until = time.monotonic() + _KILLED_SECONDS
        for process in self._processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))
            if process.stdin is not None:
                process.stdin.close()


def rendezvous_path(fd: int) -> str:
    """Return a path to the unnamed file of descriptor `fd`, through which the ranks find each other."""
    return f"/proc/self/fd/{fd}"


def tie_to_parent(parent: int, queue: SharedMemoryQueue, rank: int) -> None:
    """Send heartbeats for this rank, and end its process when `parent` ends. To be called in the main thread."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    def beat() -> None:
        while os.getppid() == parent:  # the parent may have ended before prctl took effect
            queue.beat(rank)
            time.sleep(_BEAT_EVERY)
        os._exit(EngineDeadError.exit_code)

    threading.Thread(target=beat, name="octavo-heartbeat", daemon=True).start()
