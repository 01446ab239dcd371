"""One error for a device without memory: PyTorch has a class of its own for that on GPUs alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_OF_CPU = "DefaultCPUAllocator: can't allocate memory: "
"""Stands in what PyTorch's RuntimeError says where malloc gave no memory (c10/core/impl/alloc_cpu.cpp)."""


@contextmanager
def as_out_of_memory() -> Iterator[None]:
    """Raise torch.OutOfMemoryError for the errors of a CPU without memory, those of Python and numpy included."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if (said := _without_memory(error)) is None:
            raise
        error.with_traceback(None)  # the new error refers to this one, whose frames would keep the attempt's memory
        raise torch.OutOfMemoryError(said) from None


def _without_memory(error: Exception) -> str | None:
    """Return what an error says about missing memory; None if it is another error."""
    if isinstance(error, MemoryError):
        return str(error) or "the process got no memory"
    _, known, sizes = str(error).partition(_OF_CPU)
    return f"CPU out of memory: {sizes}" if known else None
