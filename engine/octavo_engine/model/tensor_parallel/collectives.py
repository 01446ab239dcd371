"""Collectives between the ranks of a model (all-reduce, all-gather, broadcast). With one rank they do nothing."""

from __future__ import annotations

import atexit
import logging
import time
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

import torch
import torch.distributed
from torch import Tensor

from octavo_engine.errors import EngineDeadError
from octavo_engine.model.tensor_parallel.shard import Shard

log = logging.getLogger(__name__)

dist: Any = torch.distributed  # whose backends have no types
_TIMEOUT = timedelta(minutes=10)
"""The time limit for a rank that does not join a collective; runner/ranks/ notices dead or stopped ones long before."""


_MEETING = timedelta(seconds=60)
"""The time limit for all ranks to meet and map each other's memory."""
_TRIAL_SECONDS = 30.0
"""The time limit for a trial sum; its kernel would wait forever for a rank that does not join."""
_SMALL_BYTES = 256 << 10
"""The largest sums over symmetric memory, where every rank reads all ranks' numbers; NCCL divides larger sums."""


class SmallSums(Protocol):
    """The interface of a faster all-reduce for few numbers."""

    def takes(self, x: Tensor) -> bool:
        """Return True if x can be summed this way; the answer is the same on all ranks."""

    def all_reduce(self, x: Tensor) -> None:
        """Put the sum of all ranks' x into x."""


class Collectives:
    """A rank's operations with all other ranks, which call the same ones in the same order; they work in place."""

    def __init__(self, shard: Shard, backend: Any = None, small: SmallSums | None = None) -> None:
        self.shard = shard
        self._backend = backend
        self._small = small

    @property
    def alone(self) -> bool:
        """True if there are no other ranks."""
        return self.shard.size == 1

    def all_reduce(self, x: Tensor) -> Tensor:
        """Return the sum of all ranks' x, the same bits everywhere."""
        if self._small is not None and self._small.takes(x):
            self._small.all_reduce(x)
        elif self._backend is not None:
            self._backend.allreduce([x]).wait()
        return x

    def on_first_rank(self, x: Tensor) -> Tensor | None:
        """Return x on the first rank, None on others: the addend of an all-reduce that must be added only once."""
        return x if self.shard.rank == 0 else None

    def gather(self, x: Tensor) -> Tensor:
        """Gather all ranks' x [N, M] as [N, size * M] on the first rank; other ranks return x."""
        if self._backend is None:
            return x
        first = self.shard.rank == 0
        parts = [torch.empty_like(x) for _ in range(self.shard.size)] if first else []
        self._backend.gather([parts] if first else [], [x.contiguous()], dist.GatherOptions()).wait()
        return torch.cat(parts, dim=-1) if first else x

    def close(self) -> None:
        """Leave the group and stop gloo's threads, which are not stopped when the interpreter ends."""
        self._backend = self._small = None

    def broadcast(self, x: Tensor) -> Tensor:
        """Return the first rank's x."""
        if self._backend is not None:
            self._backend.broadcast([x], dist.BroadcastOptions()).wait()
        return x


ALONE = Collectives(Shard())


class SymmetricSums:
    """Sums over memory that all GPUs of the group map (torch.distributed._symmetric_memory).

    One kernel writes this rank's numbers there, waits for the others, and sums what all wrote, in the ranks' order.

    This has not been run yet, for lack of a machine with two GPUs that can access each other's memory. It was written
    after PyTorch's sources, and is used only where a trial gives the same sums as NCCL. Tests check only when it is
    chosen, and that either all ranks use it or none.
    """

    _GROUP: Any = "octavo-ranks"

    def __init__(self, shard: Shard, store: Any, device: torch.device, dtype: torch.dtype) -> None:
        self._shard, self._device, self._dtype = shard, device, dtype
        own = dist.PrefixStore(self._GROUP, store)
        own.set_timeout(_MEETING)  # ranks do not learn of another rank's failure while they meet
        self._group = dist.ProcessGroup(own, shard.rank, shard.size)

    def prepare(self) -> None:
        """Set up symmetric memory on this rank, before all ranks meet; RuntimeError where it cannot be used."""
        if self._dtype not in (torch.bfloat16, torch.float32):
            raise RuntimeError(f"its kernels do not sum {self._dtype}")
        others = (rank for rank in range(self._shard.size) if rank != self._shard.rank)
        if not all(torch.cuda.can_device_access_peer(self._device, rank) for rank in others):
            raise RuntimeError("the GPUs do not reach each other's memory")
        from torch.distributed import _symmetric_memory

        # Symmetric memory finds the group by this name; it does not become a default group.
        torch._C._distributed_c10d._register_process_group(self._GROUP, self._group)
        count = _SMALL_BYTES // self._dtype.itemsize
        self._buffer: Tensor = _symmetric_memory.empty(count, dtype=self._dtype, device=self._device)

    def meet(self) -> None:
        """Map the other ranks' memory; RuntimeError if that fails."""
        torch.distributed._symmetric_memory.rendezvous(self._buffer, self._GROUP)

    def attempt(self, expected: Sequence[Tensor]) -> None:
        """Sum each rank's `trial_numbers`; RuntimeError unless the sums are the `expected` ones.

        EngineDeadError if they do not end, since a kernel that runs on the device cannot be cancelled.
        """
        for expected_sum in expected:
            numbers = trial_numbers(self._shard, len(expected_sum), self._device, self._dtype)
            self.all_reduce(numbers)
            _wait_for(self._device)
            if not torch.equal(numbers, expected_sum):
                raise RuntimeError("its sums are not those of NCCL")

    def takes(self, x: Tensor) -> bool:
        """Return True for few numbers of the model's dtype, in whole units of 16 bytes."""
        start, size = (int(count) * x.itemsize for count in (x.storage_offset(), x.numel()))
        few = 0 < size <= _SMALL_BYTES and start % 16 == size % 16 == 0
        return few and x.is_contiguous() and x.dtype == self._dtype

    def all_reduce(self, x: Tensor) -> None:
        """Put the sum of all ranks' x into x."""
        flat = x.view(-1)
        shared = self._buffer[: len(flat)]
        torch.ops.symm_mem.one_shot_all_reduce_copy_out(shared, flat, "sum", self._GROUP, flat)


def trial_numbers(shard: Shard, count: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return a rank's numbers [count] in a trial: small whole ones, whose sum is exact in any order."""
    return ((torch.arange(count, device=device) + 3 * shard.rank) % 16).to(dtype)


def _wait_for(device: torch.device) -> None:
    """Wait until the device has finished all launches; EngineDeadError if that takes too long."""
    if device.type != "cuda":
        return
    event, end = torch.cuda.Event(), time.monotonic() + _TRIAL_SECONDS  # type: ignore[no-untyped-call]
    event.record()
    while not event.query():  # type: ignore[no-untyped-call]
        if time.monotonic() > end:
            raise EngineDeadError(
                f"a trial sum over the GPUs' symmetric memory has not ended after {_TRIAL_SECONDS:g} s; "
                "--disable-custom-all-reduce leaves every all-reduce to NCCL"
            )
        time.sleep(0.001)


def small_sums(shard: Shard, backend: Any, store: Any, device: torch.device, dtype: torch.dtype) -> SmallSums | None:
    """Return sums over symmetric memory if all ranks can map it, else None on all ranks.

    After each step of the set-up all ranks exchange over NCCL whether they succeeded, and all stop if one did not: a
    rank that sums in another way than the others would hang them.
    """
    sums = SymmetricSums(shard, store, device, dtype)
    # Computed before the steps: a rank that fails in one must not leave the others in an all-reduce of NCCL.
    expected = [trial_numbers(shard, count, device, dtype) for count in (8, _SMALL_BYTES // dtype.itemsize)]
    for numbers in expected:
        backend.allreduce([numbers]).wait()
    for step in (sums.prepare, sums.meet, partial(sums.attempt, expected)):
        able = torch.ones(1, dtype=torch.int32, device=device)
        try:
            step()
        except (RuntimeError, ImportError, AttributeError) as error:  # not on these GPUs, or not in this PyTorch
            log.info("symmetric memory is not available, so NCCL does every all-reduce: %s", error)
            able.zero_()
        backend.allreduce([able]).wait()
        if int(able) < shard.size:
            return None
    return sums


def connect(
    shard: Shard, rendezvous: str, device: torch.device, dtype: torch.dtype, *, symmetric: bool = True
) -> Collectives:
    """Connect to the other ranks by the file `rendezvous`: over NCCL on GPUs, else over gloo on the loopback interface.

    `dtype` is the model's. `symmetric`: small sums of GPUs may use symmetric memory. The backends are made here rather
    than by `init_process_group`, whose one default group belongs to the program that uses `LLM` as a library.
    """
    store = dist.FileStore(rendezvous, shard.size)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        backend = dist.ProcessGroupNCCL(store, shard.rank, shard.size, _TIMEOUT)
        return Collectives(shard, backend, small_sums(shard, backend, store, device, dtype) if symmetric else None)
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._timeout = _TIMEOUT
    ranks = Collectives(shard, dist.ProcessGroupGloo(store, shard.rank, shard.size, options))
    atexit.register(ranks.close)
    return ranks
