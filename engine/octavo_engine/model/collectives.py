"""What the ranks of a model say to each other while they compute. One rank alone says nothing and loses no time."""

from __future__ import annotations

import atexit
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from octavo_engine.model.shard import Shard

dist: Any = torch.distributed  # whose backends have no types
_TIMEOUT = timedelta(minutes=10)
"""For a rank that does not come; one that is dead or stopped is noticed long before, by others."""


class Collectives:
    """A rank's operations with all others, which do the same ones in the same order; all of them in place."""

    def __init__(self, shard: Shard, backend: Any = None) -> None:
        self.shard = shard
        self._backend = backend

    @property
    def alone(self) -> bool:
        """Whether there are no others."""
        return self.shard.size == 1

    def add_up(self, x: Tensor) -> Tensor:
        """The sum of all ranks' x, the same bits everywhere."""
        if self._backend is not None:
            self._backend.allreduce([x]).wait()
        return x

    def once(self, x: Tensor) -> Tensor | None:
        """x where it is to be part of a sum: on the first rank alone."""
        return x if self.shard.rank == 0 else None

    def gather(self, x: Tensor) -> Tensor:
        """On the first rank all ranks' x [N, M] side by side, [N, size * M]; on others x."""
        if self._backend is None:
            return x
        first = self.shard.rank == 0
        parts = [torch.empty_like(x) for _ in range(self.shard.size)] if first else []
        self._backend.gather([parts] if first else [], [x.contiguous()], dist.GatherOptions()).wait()
        return torch.cat(parts, dim=-1) if first else x

    def close(self) -> None:
        """Leave the others; at the interpreter's very end gloo's threads would not be stopped any more."""
        self._backend = None

    def broadcast(self, x: Tensor) -> Tensor:
        """The first rank's x."""
        if self._backend is not None:
            self._backend.broadcast([x], dist.BroadcastOptions()).wait()
        return x


ALONE = Collectives(Shard())


def connect(shard: Shard, meeting: str, device: torch.device) -> Collectives:
    """Meet the other ranks in the file `meeting`, to speak over NCCL on GPUs, else over gloo on the loopback interface.

    The backends are made here rather than by `init_process_group`, whose one default group belongs to whoever uses
    `LLM` as a library.
    """
    store = dist.FileStore(meeting, shard.size)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        return Collectives(shard, dist.ProcessGroupNCCL(store, shard.rank, shard.size, _TIMEOUT))
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._timeout = _TIMEOUT
    ranks = Collectives(shard, dist.ProcessGroupGloo(store, shard.rank, shard.size, options))
    atexit.register(ranks.close)
    return ranks
