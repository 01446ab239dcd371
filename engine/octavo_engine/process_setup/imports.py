"""Imports of large libraries while a program starts, without garbage collections."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def lasting_imports() -> Iterator[None]:
    """Switch garbage collection off for the imports inside, and exempt what they make from later collections.

    Importing torch makes half a million objects that live as long as the process. Collections during the import walk
    them again and again, and the first full collection after it takes about as long as all of those together.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
