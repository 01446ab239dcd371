"""The pool of text workers: it gives them tasks, for which API keys take turns, and replaces those that end or hang."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from octavo_engine.engine.info import EngineInfo
from octavo_engine.errors import EngineDeadError
from octavo_engine.runner.cores import usable_cores
from octavo_engine.server.admission.fair_pool import FairPool
from octavo_engine.server.admission.occupancy import Occupancy
from octavo_engine.server.admission.refusal import RefusedError, retry_after
from octavo_engine.server.errors import APIError, UnfitModelError
from octavo_engine.server.preparation.checked_grammars import CheckedGrammars
from octavo_engine.server.preparation.grammar_budgets import GrammarBudgets
from octavo_engine.server.preparation.prepared import (
    GRAMMAR_NOT_CHECKED,
    LENGTH,
    JSONAnswer,
    Prepared,
    Rejected,
    Result,
    Setup,
    Task,
    decode_result,
    encode,
)
from octavo_engine.server.preparation.text_limits import CPU_SECONDS, WALL_SECONDS, may_take_long
from octavo_engine.server.preparation.unknown_field_log import UnknownFieldLog

log = logging.getLogger("octavo.text_workers")

_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that end a worker and that neither the kernel sends for its limits, nor this server."""
PROGRAM = (sys.executable, "-m", "octavo_engine.server.text_worker")
_MAX_PENDING = 2048
"""Requests that may wait to be prepared. While several keys exist, each may have a quarter of them."""
RESERVED_PARTS = 64
"""If there are several keys, each may use the above divided by this, even when other keys have used all of it."""
_MOST_WORKERS = 8
_BYTE_SECONDS = 1e-6
"""Seconds that a byte of a body may take to be parsed and tokenized, for the order in which keys take turns."""
_MOST_EXPECTED = 0.1
"""The most seconds that are expected of a body, so that a large one does not wait for very many turns of other keys."""


def default_workers() -> int:
    """Return the number of text workers: at least two, so that one long prompt does not delay all others."""
    return max(2, min(_MOST_WORKERS, usable_cores() // 2))


ENDING_SECONDS = 1.0
"""Seconds for a worker to end by itself after it has closed its socket, as after a MemoryError. If it were killed
sooner, its exit status would not show why it ended."""
START_SECONDS = 300.0
"""Seconds after which a worker is killed that has not loaded its tokenizer: it hangs."""


class WorkerDiedError(Exception):
    """The worker process ended while it had a task."""


class Worker:
    """One worker process and the socket to it."""

    def __init__(self, program: Sequence[str], setup: Setup) -> None:
        self._socket, theirs = socket.socketpair()
        environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
        with theirs:
            # A session of its own: Ctrl-C on a terminal must reach only the server, which drains and needs the workers.
            self._process = subprocess.Popen(
                list(program), stdin=theirs.fileno(), env=environment, start_new_session=True
            )
        self._socket.setblocking(False)
        self._setup = encode(setup)

    async def start(self) -> None:
        """Wait until the tokenizer is loaded; WorkerDiedError if that fails."""
        await self._send(self._setup)
        await self._receive()

    async def run(self, task: bytes) -> bytes:
        """Return the result of a task; WorkerDiedError if the process ended."""
        await self._send(task)
        return await self._receive()

    def kill(self) -> int:
        """Kill the process, wait for its end, and return its exit status, which is negative for a signal."""
        self._socket.close()
        self._process.kill()  # has no effect on a process that has ended by itself
        return self._process.wait()

    def end(self) -> int:
        """Return the exit status of a process that has closed its socket; kill it if it does not end by itself."""
        self._socket.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(ENDING_SECONDS)
        return self.kill()

    def close(self) -> None:
        """Kill the process when the server ends."""
        self.kill()

    async def _send(self, message: bytes) -> None:
        try:
            await self._send_bytes(LENGTH.pack(len(message)))
            await self._send_bytes(message)  # apart from its length, as a joined copy could take many megabytes
        except OSError as error:
            raise WorkerDiedError from error

    async def _send_bytes(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._socket, data)

    async def _receive(self) -> bytes:
        [size] = LENGTH.unpack(await self._receive_exactly(LENGTH.size))
        return await self._receive_exactly(size)

    async def _receive_exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                part = await asyncio.get_running_loop().sock_recv(self._socket, size - len(data))
            except OSError as error:
                raise WorkerDiedError from error
            if not part:
                raise WorkerDiedError
            data += part
        return bytes(data)


@dataclass(frozen=True, slots=True)
class _Turn:
    """The use of a worker for one task."""

    key: str
    long: bool
    """Whether the task may take long."""
    began: float
    """When it began (monotonic seconds)."""


class TextPool:
    """The worker processes, and a bounded queue of tasks in which API keys take turns."""

    def __init__(
        self,
        several_keys: Callable[[], bool] = lambda: False,
        workers: int = 0,
        program: Sequence[str] = PROGRAM,
        hide: Callable[[str], str] = str,
    ) -> None:
        """Create a pool without workers. `hide` returns a text without API keys, for the log."""
        self._count = workers or default_workers()
        self._program = program
        self._turns: FairPool[Worker] = FairPool(self._count, several_keys)
        most_long = max(1, self._count - 1)
        self._long_turns: FairPool[None] = FairPool(most_long, several_keys)
        """The turns of tasks that may take long. They never have all of several workers, however many keys send them,
        so that short tasks need not wait for them; and the memory for them is bounded by fewer workers. A single worker
        gets them too."""
        for _ in range(most_long):
            self._long_turns.add(None)
        self._several_keys = several_keys
        self._pending = Occupancy(time.monotonic)
        self._pending_of: Counter[str] = Counter()
        """The pending requests of each key that has some."""
        self._grammar_budgets = GrammarBudgets(time.monotonic, self._count)
        self._checked_grammars = CheckedGrammars()
        self._workers: set[Worker] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._setup: Setup | None = None
        self._unknown_fields = UnknownFieldLog(hide)

    async def start(self, setup: Setup) -> None:
        """Start the workers, and wait until each has loaded the model's tokenizer; EngineDeadError if one cannot."""
        self._setup = setup
        try:
            for worker in await asyncio.gather(*(self._start_worker() for _ in range(self._count))):
                self._turns.add(worker)
        except TimeoutError:
            raise EngineDeadError(
                f"a process that tokenizes prompts did not load its tokenizer within {START_SECONDS:g} s"
            ) from None
        except WorkerDiedError:
            raise EngineDeadError(
                "a process that tokenizes prompts could not start; its own message is above"
            ) from None

    async def prepare(self, key: str, job: str, engine: EngineInfo, body: bytes) -> Prepared | JSONAnswer:
        """Return the prepared request of a body; APIError if the request is rejected, or ends its worker.

        If the call is cancelled while the task waits, the task never begins. A task that has begun runs to its end,
        within its limits.
        """
        self._check_room(key)
        self._pending.take(1)
        self._pending_of[key] += 1
        served = False
        try:
            result: Result = await asyncio.shield(await self._begin(key, job, engine, body))
            served = True
        finally:
            self._pending.release(1, served=served)
            self._pending_of[key] -= 1
            if not self._pending_of[key]:
                del self._pending_of[key]
        if isinstance(result, Rejected):
            if result.code == GRAMMAR_NOT_CHECKED:
                raise self._paused(key)
            if result.model is not None:
                raise UnfitModelError(result.message, code=result.code, model=result.model)
            headers = {"Retry-After": str(retry_after(None))} if result.status == 503 else {}
            raise APIError(result.status, result.message, code=result.code, param=result.param, headers=headers)
        return result

    def _paused(self, key: str) -> RefusedError:
        """Return the error of a request whose grammar is not compiled now."""
        detail = "new grammars took much time to compile, so that this one may not take as long for some seconds"
        return RefusedError(429, "slow_grammars", detail, math.ceil(self._grammar_budgets.seconds_left(key)) or 1)

    def _check_room(self, key: str) -> None:
        """Raise RefusedError if too many requests of this key, or of all keys, wait to be prepared."""
        pending, mine, share = self._pending.used, self._pending_of[key], _MAX_PENDING // 4
        reserved = self._several_keys() and mine < _MAX_PENDING // RESERVED_PARTS and pending < 2 * _MAX_PENDING
        if pending >= _MAX_PENDING and not reserved:
            wait = retry_after(self._pending.seconds_to_free(pending))
            raise RefusedError(503, "tokenizing", f"{pending} prompts wait to be tokenized", wait)
        if mine >= share and self._several_keys():
            detail = f"{mine} prompts of this key wait to be tokenized, and a key may have {share}"
            raise RefusedError(429, "tokenizing", detail, retry_after(self._pending.seconds_to_free(mine)))

    async def _begin(self, key: str, job: str, engine: EngineInfo, body: bytes) -> asyncio.Task[Result]:
        """Give a task to a worker when the key's turn has come; one that may take long only if it leaves another."""
        long, seconds = may_take_long(body), min(len(body) * _BYTE_SECONDS, _MOST_EXPECTED)
        if long:
            await self._long_turns.acquire(key, seconds)
        try:
            worker = await self._turns.acquire(key, seconds)
        except BaseException:
            if long:
                self._long_turns.release(key, None)
            raise
        # Clients without keys are not told apart, so that none may have others' grammars refused.
        share = self._grammar_budgets.share(key) if self._several_keys() else 1.0
        turn = _Turn(key, long, time.monotonic())
        try:
            checked = self._checked_grammars.untold(worker) if long else []  # a task with a grammar is long
            data = encode(Task(job, engine, body, share, checked))
        except BaseException:  # a MemoryError, as the task is copied
            self._release(worker, turn)
            raise
        return self._spawn(self._run(worker, turn, data))

    def _release(self, worker: Worker, turn: _Turn) -> None:
        """Return the worker of a task that has ended, or the one that replaces it, and its turn among long tasks."""
        seconds = time.monotonic() - turn.began
        if turn.long:
            self._long_turns.release(turn.key, None, seconds)
        self._turns.release(turn.key, worker, seconds)

    def close(self) -> None:
        """Kill all workers."""
        for task in self._tasks:
            task.cancel()
        for worker in self._workers:
            worker.close()
        self._workers.clear()

    async def _run(self, worker: Worker, turn: _Turn, task: bytes, *, again: bool = True) -> Result:
        """Return the result of a task. With `again`, a new worker runs it if this one is killed from outside."""
        try:
            async with asyncio.timeout(WALL_SECONDS):
                data = await worker.run(task)
            result = decode_result(data)
        except (TimeoutError, WorkerDiedError, ValueError) as error:
            status = await self._end(worker, turn, error)
            killed = -status in _FROM_OUTSIDE and isinstance(error, WorkerDiedError)
            # It may have been idle as it was killed: that is noticed only now.
            if killed and again and (new := await self._new_worker()) is not None:
                return await self._run(new, turn, task, again=False)
            # The new worker counts as held by the key until it has started. Otherwise the key's next request could end
            # the last worker that other keys have. A turn among long tasks lasts until then too: the worker that is
            # left is for short tasks.
            self._spawn(self._start_worker_again(turn))
            return _rejection(status, killed=killed, timed_out=isinstance(error, TimeoutError))
        except Exception:
            self._workers.discard(worker)
            worker.kill()
            self._spawn(self._start_worker_again(turn))
            raise
        if isinstance(result, Prepared | Rejected) and self._several_keys():
            self._grammar_budgets.take(turn.key, result.grammar_share)
        if isinstance(result, Prepared) and result.grammar:
            self._checked_grammars.add(result.grammar)
        self._release(worker, turn)
        self._unknown_fields.write(result.unknown_fields)
        return result

    async def _end(self, worker: Worker, turn: _Turn, error: Exception) -> int:
        """Return the exit status of a worker that has ended, or is killed since it took too long."""
        self._workers.discard(worker)
        status = await asyncio.to_thread(worker.end if isinstance(error, WorkerDiedError) else worker.kill)
        log.warning("a text worker ended with status %d on a request of key %r; another one starts", status, turn.key)
        return status

    async def _new_worker(self) -> Worker | None:
        """Return a worker that has started; None if it cannot start in time, which `_start_worker_again` reports."""
        with contextlib.suppress(Exception):
            async with asyncio.timeout(WALL_SECONDS):
                return await self._start_worker()
        return None

    async def _start_worker_again(self, turn: _Turn) -> None:
        pause = 0.0
        while True:
            try:
                return self._release(await self._start_worker(), turn)
            except Exception as error:  # noqa: BLE001  (without trying again, the pool would have one worker less for good)
                pause = min(10.0, 2 * pause + 0.5)
                log.error("a text worker cannot be started (%r); trying again in %g s", error, pause)
                await asyncio.sleep(pause)

    async def _start_worker(self) -> Worker:
        if self._setup is None:
            raise RuntimeError("the pool has not been started")
        worker = Worker(self._program, self._setup)
        self._workers.add(worker)
        try:
            async with asyncio.timeout(START_SECONDS):
                await worker.start()
        except BaseException:
            self._workers.discard(worker)
            with contextlib.suppress(ProcessLookupError):
                worker.kill()
            raise
        return worker

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _rejection(status: int, *, killed: bool, timed_out: bool) -> Rejected:
    """Return the error of a request whose worker ended with `status`."""
    if killed:
        message = "the process that read the request was killed, not by this server; send the request again"
        return Rejected(503, message, "preparation_interrupted", None)
    if timed_out and status != -signal.SIGPROF:
        message = f"the request was not read within {WALL_SECONDS:g} s: the server is overloaded; try again later"
        return Rejected(503, message, "preparation_interrupted", None)
    if status == -signal.SIGPROF:
        message = f"the prompt takes more than {CPU_SECONDS:g} s to be rendered and tokenized; send less text"
        return Rejected(400, message, "preparation_timeout", None)
    return Rejected(400, "the request takes too much memory to be read; send less", "request_too_complex", None)
