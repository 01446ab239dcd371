"""Ends a program quietly if its standard output cannot be written, such as `octavo-engine models | head`."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path

OUTPUT_ERROR = 1


def with_written_output(program: str, command: Callable[[], int]) -> int:
    """Return the exit code of `command`, or OUTPUT_ERROR if its output cannot be written.

    A pipe whose reader has gone, as with `| head`, ends the program without a word; a full disk ends it with a line.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the shell, as with `>&-`
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a locale may lack letters that a model writes
    try:
        code = command()
        sys.stdout.flush()
    except BrokenPipeError:
        pass
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        sys.stderr.write(f"{program}: the output cannot be written: {error.strerror}\n")
    else:
        return code
    with Path(os.devnull).open("w") as nothing:
        os.dup2(nothing.fileno(), sys.stdout.fileno())  # what is held would be written again at the end
    return OUTPUT_ERROR
