"""`check_integrity` finds faults that the tests plant, since a check that never fails would prove nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from simulation import add, make_engine, run, step

from octavo_engine.core.scheduler import Scheduler


def healthy() -> Scheduler:
    """Two that run and share a block, one that is swapped out, one that waits; some blocks cached, some free."""
    scheduler, device = make_engine(blocks=16, seqs=2, policy="priority", swap_blocks=8, swap_block_seconds=0.0)
    add(scheduler, "before", 50, max_tokens=1)
    run(scheduler, device=device)
    add(scheduler, "a", range(20), max_tokens=60)
    add(scheduler, "low", 20, max_tokens=60, priority=5)
    while scheduler._requests["a"].computed < 34:  # then its first blocks can be found
        step(scheduler, device)
    add(scheduler, "b", [*range(16), 7], max_tokens=60, priority=-1)
    add(scheduler, "waits", 20, priority=9)
    step(scheduler, device)
    assert sorted(request.request_id for request in scheduler.running) == ["a", "b"]
    assert scheduler._requests["a"].block_tables[0][0] == scheduler._requests["b"].block_tables[0][0]
    assert scheduler._requests["low"].swapped is not None
    cache = scheduler.memory.pools[0].cache
    assert cache is not None
    assert cache.unused
    assert scheduler.memory.pools[0]._free
    scheduler.check_integrity()
    return scheduler


def table(scheduler: Scheduler, name: str) -> list[int]:
    return scheduler._requests[name].block_tables[0]


def resting(scheduler: Scheduler) -> int:
    cache = scheduler.memory.pools[0].cache
    assert cache is not None
    return min(cache.unused)


def forget_resting(scheduler: Scheduler) -> None:
    cache = scheduler.memory.pools[0].cache
    assert cache is not None
    cache._policy.remove(resting(scheduler))


def reserve_too_much(scheduler: Scheduler) -> None:
    """The counts of reserved blocks agree, but there are not so many."""
    pool = scheduler.memory.pools[0]
    pool.reserved = pool.available + 1
    scheduler._requests["a"].reserved = [pool.reserved]


def swap_held_twice(scheduler: Scheduler) -> None:
    swapped = scheduler._requests["low"].swapped
    assert swapped is not None
    scheduler.memory.swap.pools[0]._free.append(swapped.tables[0][0])


def without_blocks(scheduler: Scheduler) -> None:
    """Given back properly, but the request still runs."""
    scheduler.memory.free(scheduler._requests["a"])


FAULTS: dict[str, tuple[Callable[[Scheduler], object], str]] = {
    "a free block is lost": (lambda s: s.memory.pools[0]._free.pop(), "16 blocks, but"),
    "a cached block is lost": (forget_resting, "16 blocks, but"),
    "a used block is free": (lambda s: s.memory.pools[0]._free.append(table(s, "a")[1]), "two states"),
    "a cached block is free": (lambda s: s.memory.pools[0]._free.append(resting(s)), "two states"),
    "a block is free twice": (lambda s: s.memory.pools[0]._free.append(s.memory.pools[0]._free[0]), "two states"),
    "a reference too many": (lambda s: s.memory.pools[0].share(table(s, "a")[1]), "reference counts"),
    "a reference too few": (lambda s: s.memory.pools[0].free([table(s, "a")[0]]), "reference counts"),
    "a block is held that was never taken": (lambda s: table(s, "a").append(s.memory.pools[0]._free[0]), "reference"),
    "a table has another's block": (lambda s: table(s, "a").__setitem__(1, table(s, "b")[1]), "reference counts"),
    "more is reserved than there is": (reserve_too_much, "reserved, but"),
    "a reservation is no request's": (lambda s: setattr(s.memory.pools[0], "reserved", 1), "were reserved"),
    "a reservation is not counted": (lambda s: setattr(s._requests["a"], "reserved", [1]), "were reserved"),
    "a swap block is lost": (lambda s: s.memory.swap.pools[0]._free.pop(), "swap space"),
    "a swap block is held twice": (swap_held_twice, "swap space"),
    "a row is lost": (lambda s: setattr(s.running, "_free_rows", [0]), "row"),
    "a row is held twice": (lambda s: setattr(s._requests["a"], "row", s._requests["b"].row), "row"),
    "a request is nowhere": (lambda s: s._policy.waiting.remove(s._requests["waits"]), "neither waiting nor running"),
    "an account is left over": (lambda s: s._policy.accounts.open("ghost", 1.0), "account"),
    "an account is closed too early": (lambda s: s._policy.accounts.close(""), "account"),
    "a running request has no blocks": (without_blocks, "no blocks"),
    "a request was preempted too often": (lambda s: setattr(s._requests["a"], "preemptions", 4), "too often"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_every_planted_fault_is_found(fault: str) -> None:
    scheduler = healthy()
    plant, message = FAULTS[fault]
    plant(scheduler)
    with pytest.raises(RuntimeError, match=message):
        scheduler.check_integrity()
