"""Checks in a child process, whose CPU time is limited, whether a grammar can be compiled.

The child does what the engine will do, which then takes no longer. llguidance's limits do not bound the time: 1 KB with
30 patterns for one string takes more than 4 s, 4 KB without regard to case 0.6 s. Nothing can interrupt it but the end
of its process. A child is ended and replaced in milliseconds, while a text worker that ends has to load its tokenizer
again.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import select
import signal
import time
from collections import OrderedDict
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, NoReturn

from llguidance import LLTokenizer

from octavo_engine.structured.grammar import GrammarError, error_in, json_schema_grammar

_LEAST_SECONDS, _TIMES = 0.25, 10
_libc = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1
_IDLE_SECONDS, _IDLE_SHARE, _FIRST_LOOK, _LOOK_AGAIN = 0.8, 0.3, 0.1, 0.02
"""The first child runs only where no other thread wants to (SCHED_IDLE), for at most 0.8 s, and no longer if it gets
less than 0.3 of a core, with which it would not end in time; that is looked at after 0.1 s and then every 0.02 s. A
step on CPUs has hundreds of short waits; a thread goes on at once where an idle task ran, and often 2 ms late where one
of low priority did. A second child then starts over, as only a privileged process can leave SCHED_IDLE, with the text
worker's priority: its client waits."""
_SCHEDULED_TIME = 2
"""Linux' CPUCLOCK_SCHED: with a process's id it makes the id of the clock of its CPU time."""
MOST_PASSED = 4096
"""The number of digests that are kept."""
_BYTES = LLTokenizer("byte")
_passed: OrderedDict[tuple[LLTokenizer, bytes], None] = OrderedDict()
"""Vocabularies with digests of grammars that could be compiled with them, the one that was used last at the end."""


_killed: list[int] = []
"""The child that was given up and has not ended yet, if there is one."""


class _Child(NamedTuple):
    """A process that checks a grammar."""

    pid: int
    pipe: int
    """The file descriptor from which its answer can be read."""


class CheckImpossibleError(Exception):
    """Raised if a grammar cannot be checked now, as no process can be started for it."""


class SlowGrammarError(GrammarError):
    """Raised for a grammar that cannot be compiled within `most_seconds`."""


class CheckPausedError(Exception):
    """Raised for a grammar that cannot be checked within the share of time that new ones may take now."""


@dataclass(slots=True)
class CheckTime:
    """The CPU time that checking the grammars of a request may take, and has taken, as shares of `most_seconds`."""

    share: float = 1.0
    """What each check may take. With 0 none begins."""
    used: float = 0.0
    """What all checks took, in the children that gave answers or took too long."""


def check_grammar(grammar: str, vocabulary: LLTokenizer = _BYTES, allowed: CheckTime | None = None) -> None:
    """Raise GrammarError if the grammar cannot be compiled, SlowGrammarError if not within `most_seconds`.

    `vocabulary` has the control tokens that the grammar may name; its other tokens count only by their bytes. Raises
    CheckImpossibleError if the grammar cannot be checked now, and CheckPausedError if the check takes longer than
    an `allowed.share` below 1. The time that the check takes is added to `allowed.used`.
    """
    found = digest(grammar)
    if (vocabulary, found) not in _passed:
        allowed = allowed or CheckTime()
        if not allowed.share:
            raise CheckPausedError
        try:
            error = _error_in_child(grammar, vocabulary, allowed)
        except SlowGrammarError:
            if allowed.share < 1:
                raise CheckPausedError from None
            raise
        if error:
            raise GrammarError(error)
    note_passed(found, vocabulary)


def digest(grammar: str) -> bytes:
    """Return the digest of a grammar."""
    return hashlib.sha256(grammar.encode(errors="surrogatepass")).digest()


def note_passed(found: bytes, vocabulary: LLTokenizer) -> None:
    """Note that the grammar with this digest could be compiled, here or by another process with this vocabulary."""
    _passed[vocabulary, found] = None
    _passed.move_to_end((vocabulary, found))
    if len(_passed) > MOST_PASSED:
        _passed.popitem(last=False)


@cache
def most_seconds() -> float:
    """Return the limit of CPU seconds: ten times what a large schema takes on this machine, and no less than 0.25.

    The schema, of 500 properties, takes about 30 ms on a CPU of 2023, one of 1,700 the limit. Published schemas of 25
    tools, such as those of GitHub's and GitLab's pipelines, of up to 110 KB and without keywords that are not
    supported, take 2 to 53 ms.
    """
    properties = {f"property_{each}": {"type": "string", "minLength": each} for each in range(500)}
    grammar = json_schema_grammar(json.dumps({"type": "object", "properties": properties}))
    begin = time.process_time()
    error_in(grammar, _BYTES)
    return max(_LEAST_SECONDS, _TIMES * (time.process_time() - begin))


def _error_in_child(grammar: str, vocabulary: LLTokenizer, allowed: CheckTime) -> str:
    """Return why the grammar cannot be compiled; empty if it can. Each child may take the share of CPU time."""
    seconds = allowed.share * most_seconds()
    if _reaped():
        first = _start(grammar, vocabulary, seconds, idle=True)
        if not _is_starved(first):
            return _error_of(first, allowed)
        _give_up(first)
    return _error_of(_start(grammar, vocabulary, seconds, idle=False), allowed)


def _error_of(child: _Child, allowed: CheckTime) -> str:
    """Wait for the child's answer and end, and return why the grammar cannot be compiled; empty if it can.

    Raises SlowGrammarError if it takes too long. Its CPU time is added to `allowed.used`.
    """
    with os.fdopen(child.pipe, encoding="utf-8") as pipe:
        error = pipe.read()
    _, ended, usage = os.wait4(child.pid, 0)
    allowed.used += (usage.ru_utime + usage.ru_stime) / most_seconds()
    status = os.waitstatus_to_exitcode(ended)
    if status == -signal.SIGPROF:
        raise SlowGrammarError(
            f"it takes more than {most_seconds():.2g} s of CPU time to compile; use fewer patterns, patternProperties "
            "and bounds, smaller character classes, or a shorter schema or grammar"
        )
    return error if status == 0 else "it is nested too deep, or takes too much memory to compile; simplify it"


def _give_up(child: _Child) -> None:
    """Kill the child without waiting for its end, for which it needs idle cores as well."""
    os.kill(child.pid, signal.SIGKILL)
    os.close(child.pipe)
    _killed.append(child.pid)


def _reaped() -> bool:
    """Return True if no child that was given up is left, so that there is one of them at most."""
    while _killed and os.waitpid(_killed[-1], os.WNOHANG)[0]:
        _killed.pop()
    return not _killed


def _start(grammar: str, vocabulary: LLTokenizer, seconds: float, *, idle: bool) -> _Child:
    """Start a child that may use `seconds` of CPU time, whatever one before it has used: a grammar that may be
    compiled must not be refused because the machine is busy."""
    pipe: tuple[int, ...] = ()
    worker = os.getpid()
    try:
        reading, writing = pipe = os.pipe()
        child = os.fork()
    except OSError as error:
        for each in pipe:
            os.close(each)
        raise CheckImpossibleError(f"a grammar cannot be checked now: {error.strerror}; try again later") from None
    if child == 0:
        _answer(writing, grammar, vocabulary, seconds, worker, idle)
    os.close(writing)
    return _Child(child, reading)


def _is_starved(child: _Child) -> bool:
    """Wait for the child's answer or end; return True as soon as idle cores alone do not suffice for it."""
    clock = (~child.pid << 3) | _SCHEDULED_TIME
    begin, pause = time.monotonic(), _FIRST_LOOK
    while not select.select([child.pipe], [], [], pause)[0]:
        pause = _LOOK_AGAIN
        waited = time.monotonic() - begin
        with contextlib.suppress(OSError):  # it has just ended
            if waited > _IDLE_SECONDS or time.clock_gettime(clock) < _IDLE_SHARE * waited:
                return True
    return False


def _answer(writing: int, grammar: str, vocabulary: LLTokenizer, seconds: float, worker: int, idle: bool) -> NoReturn:
    """Write what `error_in` returns, and end this process: the child, which must run nothing else of its parent's."""
    status = 1
    try:
        if idle:
            with contextlib.suppress(OSError):  # a sandbox may forbid it; the worker's nice value acts in any case
                os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # a worker that is killed, as this hangs, leaves no child
        if os.getppid() != worker:  # it was killed before that
            os._exit(status)
        signal.setitimer(signal.ITIMER_PROF, seconds)  # SIGPROF ends the process
        os.write(writing, error_in(grammar, vocabulary).encode())
        status = 0
    finally:
        os._exit(status)
