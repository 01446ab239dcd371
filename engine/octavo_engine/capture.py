"""Recording of work on a device, which is then repeated by one launch: CUDA graphs behind one protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch

Work = Callable[[], None]
"""A function that launches operations on tensors with fixed addresses; its host code runs only while recording."""


class Capture(Protocol):
    """A way to record work."""

    def capture(self, works: Iterable[Work]) -> list[Work]:
        """Capture each of `works` and return what replays it. They should come with the largest first.

        Each work is run once, then recorded: a replay does the same operations on the same tensors and does not run
        the host's code again. All records share the memory that they allocate, so that only one may run at a time.
        Work that waits for the device cannot be recorded and is an error.
        """

    def taken(self) -> int:
        """Return the device's bytes that any process uses, without PyTorch's cache of freed memory."""


class CUDAGraphs:
    """CUDA graphs: a replay costs the host one launch, and the device has no gaps between kernels."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        # All graphs share one stream, since libraries such as cuBLAS keep a workspace for each stream.
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def capture(self, works: Iterable[Work]) -> list[Work]:
        """Record each work as a CUDA graph. They share a memory pool, which is freed with the last of them."""
        pool = torch.cuda.graph_pool_handle()
        return [self._record(work, pool) for work in works]

    def _record(self, work: Work, pool: Any) -> Work:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            work()  # compiles kernels and sets up libraries for these shapes, which is not possible while recording
        graph = torch.cuda.CUDAGraph()
        # "thread_local": other threads may allocate memory or wait for the device during this recording.
        with torch.cuda.graph(graph, pool=pool, stream=self._stream, capture_error_mode="thread_local"):
            work()
        return graph.replay

    def taken(self) -> int:
        """Return the device's bytes that any process uses, without PyTorch's cache of freed memory."""
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(self._device)
        return total - free
