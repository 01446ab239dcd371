"""SIGTERM and SIGINT before a server listens for them, and after it has ended."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from octavo_engine.process_setup.signals import ended_quietly, how_it_ended

BEFORE = """
import time
from octavo_engine.process_setup.signals import ended_quietly
with ended_quietly():
    class Slow:
        def __del__(self):
            print(flush=True)
            time.sleep(600)
    Slow()
"""
AFTER = """
import sys
from octavo_engine.process_setup.signals import ended_quietly
with ended_quietly():
    pass
print(flush=True)
sys.stdin.read()
sys.exit(7)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(("program", "code"), [(BEFORE, 0), (AFTER, 7)])
def test_a_signal_outside_of_a_server_s_life(number: signal.Signals, program: str, code: int) -> None:
    with subprocess.Popen(
        (sys.executable, "-c", program), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(number)
        _, errors = process.communicate(timeout=120)  # closes standard input
    assert (process.returncode, errors) == (code, b"")


def test_an_error_leaves_the_handlers_as_they_were() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with pytest.raises(ZeroDivisionError), ended_quietly():
        raise ZeroDivisionError
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def test_the_end_of_a_process_is_told_with_its_likely_cause() -> None:
    """A safetensors file is mapped into memory: the kernel ends a process that reads what was cut off."""
    assert how_it_ended(3) == "ended with exit code 3"
    assert how_it_ended(-signal.SIGTERM) == "was killed by SIGTERM"
    assert how_it_ended(-signal.SIGRTMIN - 1) == f"was killed by signal {signal.SIGRTMIN + 1}"
    assert how_it_ended(-signal.SIGKILL) == "was killed by SIGKILL, as the kernel does when memory runs out"
    assert "safetensors, is cut short" in how_it_ended(-signal.SIGBUS)
