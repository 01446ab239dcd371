"""Handling of SIGTERM and SIGINT: before a server has its own handlers, after its end, in long commands and steps."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

_ENDING = (signal.SIGTERM, signal.SIGINT)
_STANDARD_ERROR = 2
_CAUSES = {
    signal.SIGKILL: ", as the kernel does when memory runs out",
    signal.SIGBUS: ", as the kernel does when a mapped file, such as the model's safetensors, is cut short, or when "
    "shared memory (/dev/shm) is full",
}
"""What the kernel tells with these signals."""


def how_it_ended(code: int) -> str:
    """Return how a process with this `returncode` ended, in words that follow its name."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        number = signal.Signals(-code)
    except ValueError:  # most real-time signals have no name
        return f"was killed by signal {-code}"
    return f"was killed by {number.name}{_CAUSES.get(number, '')}"


@contextlib.contextmanager
def ended_at_once(note: str = "") -> Iterator[None]:
    """End the process at once if a signal comes within the block, with the exit code 128 + its number, after `note`.

    Threads that compute or download would otherwise keep it for as long as they run, or abort it.
    """

    def end(number: int, _: object) -> None:
        try:
            if note:
                os.write(_STANDARD_ERROR, f"\n{note}\n".encode())
        finally:
            os._exit(128 + number)

    heard = [number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN]  # as in a script's `&`
    before = {number: signal.signal(number, end) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def interrupt_waits() -> Iterator[None]:
    """Handle a SIGINT (Ctrl-C) that comes within the block when the block has ended, not at any place in it.

    Only the main thread handles signals, so in other threads nothing interrupts the block.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or handler is None:  # None: it is not one of Python's
        yield
        return
    heard: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: heard.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if heard:
            signal.raise_signal(signal.SIGINT)


@contextlib.contextmanager
def ended_quietly() -> Iterator[None]:
    """End the process with exit code 0 if a signal comes before the block has its own handlers.

    After the block has ended without an error, signals are ignored, since the interpreter takes a while to end.
    """
    # os._exit instead of an exception: Python ignores exceptions in callbacks of the garbage collector or of imports.
    before = {number: signal.signal(number, lambda *_: os._exit(0)) for number in _ENDING}
    try:
        yield
    except BaseException:
        for number, handler in before.items():
            signal.signal(number, handler)
        raise
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)
