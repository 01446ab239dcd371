"""Ranks 1.. of a model, each a process: started, told what to do, watched, ended. Rank 0 is in this process."""

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
from octavo_engine.runner.board import Board
from octavo_engine.runner.memory import DeviceMemory

_LOOK_EVERY = 0.2
_TELL_EVERY = 0.02
_BEAT_EVERY = 0.25
_SILENCE = 3.0
"""Seconds without a sign of life after which a rank counts as stopped."""
_SILENCE_LOADING = 60.0
"""The same while it loads, when reading a large tensor may hold the interpreter."""
_CAUSE_SECONDS = 1.0
"""In which a rank's death shows after the broken connection that it caused."""
_END_SECONDS = 3.0
_KILLED_SECONDS = 0.5
"""For all of them together: of a process that is killed a GPU's driver may have some seconds to clean up."""
_PR_SET_PDEATHSIG = 1

T = TypeVar("T")


class Ranks:
    """The other ranks of a group of `size`, run by the Python module `module`; `job` is a line for its standard input.

    Make it in a thread that lives as long as they shall: the kernel ends them with it.
    """

    def __init__(self, size: int, module: str, job: bytes) -> None:
        self.size = size
        memory, meeting = Board.create(size), os.memfd_create("octavo-meeting")
        self.board = Board(memory, size)
        self.meeting = meeting_place(meeting)
        self._ready = False
        self._processes = {
            rank: subprocess.Popen(
                [sys.executable, "-m", module, *map(str, (rank, size, memory, meeting, os.getpid()))],
                stdin=subprocess.PIPE,
                pass_fds=(memory, meeting),
            )
            for rank in range(1, size)
        }
        for process in self._processes.values():
            if process.stdin is not None:
                process.stdin.write(job)
                process.stdin.flush()
        os.close(memory)
        self._meeting_fd = meeting
        self._looked = time.monotonic()
        self._seen = dict.fromkeys(self._processes, (0, self._looked))

    def report_own(self, phase: str, ratio: float, _detail: str) -> None:
        """How far rank 0 is."""
        self.board.set_loaded(0, ratio if phase == "loading" else 1.0)

    def memories(self) -> list[DeviceMemory]:
        """The devices of the others, once each has told of its own."""
        while not all(self.board.memory(rank) for rank in self._processes):
            self.check()
            time.sleep(_TELL_EVERY)
        told = {rank: self.board.memory(rank) or (0, 0) for rank in self._processes}
        return [DeviceMemory(total, free, f"the device of rank {rank}") for rank, (total, free) in told.items()]

    def ready(self) -> None:
        """All ranks are loaded."""
        self._ready = True

    def send(self, message: bytes) -> None:
        """Give `message` to all; an empty one ends them."""
        self.board.send(message, self.check)

    def wait(self, future: Future[T], looking: Callable[[], None] = lambda: None) -> T:
        """The result of something that needs all ranks; the error of the one that fails, even if it never ends."""
        while not future.done():
            futures.wait([future], timeout=_LOOK_EVERY)
            looking()
            self.check()
        error = future.exception()
        if error is not None and not isinstance(error, OctavoError):
            self._look_for_the_cause()
        return future.result()

    def _look_for_the_cause(self) -> None:
        until = time.monotonic() + _CAUSE_SECONDS
        while time.monotonic() < until:
            self.check()
            time.sleep(0.02)

    def check(self) -> None:
        """An OctavoError unless all ranks live: what one said last, or how it ended."""
        now = time.monotonic()
        if now - self._looked > _SILENCE / 2:  # it was we who stood still, or nobody asked
            self._seen = {rank: (beats, now) for rank, (beats, _) in self._seen.items()}
        self._looked = now
        for rank, process in self._processes.items():
            if process.poll() is not None:
                raise self._error_of(rank, process.returncode)
            beats, since = self._seen[rank]
            if self.board.beats(rank) != beats:
                self._seen[rank] = self.board.beats(rank), now
            elif now - since > (_SILENCE if self._ready else _SILENCE_LOADING):
                raise EngineDeadError(
                    f"rank {rank} of {self.size} (process {process.pid}) stands still: no sign of life for "
                    f"{now - since:.0f} s"
                )

    def _error_of(self, rank: int, code: int) -> OctavoError:
        if (failure := self.board.failure(rank)) is not None:
            return BY_EXIT_CODE.get(failure[0], EngineDeadError)(f"rank {rank} of {self.size}: {failure[1]}")
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        hint = ", as the kernel does when memory runs out" if code == -signal.SIGKILL else ""
        return EngineDeadError(f"rank {rank} of {self.size} {how}{hint}")

    def end(self) -> None:
        """Let them end by themselves, which takes no time unless something is wrong."""
        try:
            self.send(b"")
            for process in self._processes.values():
                process.wait(_END_SECONDS)
        except (OctavoError, subprocess.TimeoutExpired):
            pass
        self.kill()

    def kill(self) -> None:
        """End them at once; one that takes its time is waited for no longer than all may take."""
        for process in self._processes.values():
            process.kill()
        until = time.monotonic() + _KILLED_SECONDS
        for process in self._processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))
            if process.stdin is not None:
                process.stdin.close()
        if self._meeting_fd >= 0:
            os.close(self._meeting_fd)
            self._meeting_fd = -1


def meeting_place(fd: int) -> str:
    """A path to the nameless file behind `fd`, in which ranks find each other."""
    return f"/proc/self/fd/{fd}"


def live_with(parent: int, board: Board, rank: int) -> None:
    """Tell that this rank lives, and end it when `parent` does. To be called in the main thread."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    def beat() -> None:
        while os.getppid() == parent:  # it may have died before the kernel was told
            board.beat(rank)
            time.sleep(_BEAT_EVERY)
        os._exit(EngineDeadError.exit_code)

    threading.Thread(target=beat, name="octavo-heartbeat", daemon=True).start()
