"""Work on a device, recorded once and then repeated by one launch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch

Work = Callable[[], None]
"""Launches operations on tensors that stay where they are; what it computes on the host is computed once."""


class Capture(Protocol):
    """A way to record work."""

    def capture(self, works: Iterable[Work]) -> list[Work]:
        """Capture each of `works` and return what replays it. They should come with the largest first.

        Each is run once, then recorded: the same operations on the same tensors, whatever the host has in
        mind by then. Memory that they allocate is the records' own and shared by all of them, so that only one may
        run at a time. Work that waits for the device cannot be recorded and is an error.
        """

    def taken(self) -> int:
        """Bytes of the device in use by any process, without what PyTorch only keeps for later."""


class CUDAGraphs:
    """CUDA graphs: a replay costs the host one launch, and the device has no gaps between kernels."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        # One stream for all: libraries keep a workspace for each.
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def capture(self, works: Iterable[Work]) -> list[Work]:
        """Record each work as a CUDA graph. They share a memory pool, which is freed with the last of them."""
        pool = torch.cuda.graph_pool_handle()
        return [self._record(work, pool) for work in works]

    def _record(self, work: Work, pool: Any) -> Work:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            work()  # kernels are compiled and libraries set up for these very shapes
        graph = torch.cuda.CUDAGraph()
        # Only this thread's calls are judged: others may well allocate or wait meanwhile.
        with torch.cuda.graph(graph, pool=pool, stream=self._stream, capture_error_mode="thread_local"):
            work()
        return graph.replay

    def taken(self) -> int:
        """Bytes of the device in use by any process, without what PyTorch only keeps for later."""
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(self._device)
        return total - free
