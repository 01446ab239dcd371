"""SIGTERM and SIGINT before a server listens for them, and after it has ended: neither changes its exit code."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

_ENDING = (signal.SIGTERM, signal.SIGINT)


@contextlib.contextmanager
def ended_quietly() -> Iterator[None]:
    """End the process with exit code 0 if a signal comes before the block has its own handlers.

    Once the block has ended without an error, signals are ignored: the interpreter takes a while to end.
    """
    # Not by an exception: one that is raised in a callback of the garbage collector or of an import is ignored.
    before = {number: signal.signal(number, lambda *_: os._exit(0)) for number in _ENDING}
    try:
        yield
    except BaseException:
        for number, handler in before.items():
            signal.signal(number, handler)
        raise
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)
