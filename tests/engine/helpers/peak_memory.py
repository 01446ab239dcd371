"""Measures the most memory that a block of code allocates on the CPU, with PyTorch's profiler."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch.profiler import ProfilerActivity, profile


@dataclass
class Peak:
    """Filled when the block ends."""

    bytes: int = 0


@contextmanager
def peak_memory() -> Iterator[Peak]:
    """Measure the largest sum of bytes of tensors that are allocated in the block and alive at once."""
    peak, live = Peak(), 0
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        yield peak
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            live += event.nbytes()
            peak.bytes = max(peak.bytes, live)
    assert peak.bytes > 0
