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
    except MemoryError as error:
        raise torch.OutOfMemoryError(str(error) or "the process got no memory") from None
    except RuntimeError as error:
        _, known, sizes = str(error).partition(_OF_CPU)
        if not known:
            raise
        raise torch.OutOfMemoryError(f"CPU out of memory: {sizes}") from None
