"""One thread for the work of several tenants."""

from __future__ import annotations

import subprocess
import sys
import time
from functools import partial
from threading import Event, stack_size

import pytest

from octavo_engine.structured.fair_thread import FairThread

PATIENCE = 120
"""Seconds in which the thread has to begin or end something: no test waits so long unless something is wrong."""


def busy(turns: FairThread) -> Event:
    """Keep the thread busy until the event is set."""
    began, go_on = Event(), Event()
    turns.submit("", lambda: (began.set(), go_on.wait(PATIENCE)))
    began.wait(PATIENCE)
    return go_on


def test_tenants_take_turns_and_each_has_its_own_order() -> None:
    turns, done = FairThread("test"), list[str]()
    go_on = busy(turns)
    pieces = [
        turns.submit(name[0], lambda name=name: done.append(name)) for name in ("a1", "a2", "a3", "b1", "c1", "b2")
    ]
    go_on.set()
    for piece in pieces:
        piece.result(PATIENCE)
    assert done == ["a1", "b1", "c1", "a2", "b2", "a3"]


def test_a_tenant_with_short_work_waits_for_no_long_work_of_each_other() -> None:
    """Eight tenants with grammars that took as long as is allowed made another wait for all eight."""
    turns, done = FairThread("test"), list[str]()

    def compute(name: str, seconds: float) -> None:
        end = time.thread_time() + seconds
        while time.thread_time() < end:
            pass
        done.append(name)

    go_on = busy(turns)
    pieces = [turns.submit(name, partial(compute, name, 0.05)) for name in "abc"]
    go_on.set()
    for piece in pieces:
        piece.result(PATIENCE)
    go_on = busy(turns)
    pieces = [turns.submit(name, partial(compute, name, 0.0)) for name in ("a", "b", "c", "another")]
    go_on.set()
    for piece in pieces:
        piece.result(PATIENCE)
    assert done[:3] == ["a", "b", "c"] and done[3] == "another"


def test_what_is_cancelled_takes_no_turn_and_what_fails_ends_nothing() -> None:
    turns, done = FairThread("test"), list[str]()
    go_on = busy(turns)
    gone = [turns.submit("a", lambda: done.append("gone")) for _ in range(5)]
    failing = turns.submit("a", lambda: 1 // 0)
    last = turns.submit("b", lambda: done.append("last"))
    assert all(piece.cancel() for piece in gone)
    go_on.set()
    with pytest.raises(ZeroDivisionError):
        failing.result(PATIENCE)
    last.result(PATIENCE)
    assert done == ["last"]
    assert not turns._waiting


_COMPILES = """
from llguidance import LLMatcher, LLTokenizer
from octavo_engine.structured.grammar import LIMITS
from octavo_engine.structured.fair_thread import FairThread
rules = "\\n".join(f'r{n}: r{n + 1} "a"' for n in range(9000))
grammar = f'start: r0\\n{rules}\\nr9000: "x"'
print(FairThread("x").submit("", lambda: LLMatcher(LLTokenizer("byte"), grammar, limits=LIMITS).get_error()).result())
"""


def test_grammars_nested_deeper_than_a_text_worker_could_read_do_not_end_the_engine() -> None:
    """A chain of 2,673 rules passed a worker's check and ended the engine, whose stack was a little smaller."""
    before = stack_size()
    FairThread("x")
    assert stack_size() == before
    ran = subprocess.run([sys.executable, "-c", _COMPILES], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
