"""Read what a long-running program says, without going quiet when it does."""

import os
import selectors
import subprocess
import time
from collections.abc import Iterator
from typing import IO, cast

from .report import HEARTBEAT


def lines_with_heartbeat(process: subprocess.Popen[str], every: float = HEARTBEAT) -> Iterator[str | None]:
    """Yield each line of the process's stderr (a text pipe), and None whenever `every` seconds have gone by."""
    descriptor = cast(IO[str], process.stderr).fileno()
    pending, due = b"", time.monotonic() + every
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while True:
            if time.monotonic() >= due:
                due += every
                yield None
            if not selector.select(timeout=max(0.0, due - time.monotonic())):
                continue
            chunk = os.read(descriptor, 65536)
            if not chunk:
                return
            *lines, pending = (pending + chunk).split(b"\n")
            yield from (line.decode(errors="replace") for line in lines)
