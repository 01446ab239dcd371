"""The device's adapter slots: adapters that waiting requests need are written into slots, in parts between steps.

A request begins to run when its adapter is in a slot, and a slot that running requests use keeps its adapter. So no
step has more adapters than there are slots (--max-loras). If adapters wait for a slot for long, adapters take turns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Set
from dataclasses import dataclass, field

from octavo_engine.engine.adapter_store import AdapterStore
from octavo_engine.model.lora.adapter import Adapter, AdapterWrite
from octavo_engine.runner.executor import Executor

MAX_WAIT = 64
"""Steps for which an adapter may wait for a slot while requests of other adapters are admitted. After that, until a
slot is free, no request is admitted whose adapter has had its slot for this many steps. Requests of adapters that got
their slot later are still admitted: writing an adapter into a slot for one request alone costs too much."""

TURN = 256
"""Steps after which an adapter's running requests give up its slot if another adapter has waited for as many. Steps in
which any of them is still prefilling do not count: otherwise a long prompt would be begun again and again, and never
be finished."""


@dataclass(slots=True)
class _Slot:
    adapter: Adapter | None = None
    writes: deque[AdapterWrite] = field(default_factory=deque)
    """The adapter's writes that are not done yet."""
    begun: int | None = None
    """The step in which the first request began to run with the adapter since it is in this slot; None before."""
    decoded: int = 0
    """Steps since then in which requests ran with the adapter and all of them were decoding."""
    used: int = 0
    """The last step in which a request ran with the adapter, or in which it got the slot."""


class AdapterSlots:
    """Decides which adapter each slot holds; `executor` writes the adapters."""

    def __init__(self, count: int, store: AdapterStore, executor: Executor) -> None:
        self._slots = [_Slot() for _ in range(count)]
        self._store, self._executor = store, executor
        self._refused: dict[str, int] = {}
        """For each adapter that waits for a slot: the first step in which it found none."""
        self._in_use: set[int] = set()
        self._step = 0

    def before_plan(self, running: Iterable[str], *, prefilling: Set[str], max_writes: int) -> None:
        """Begin a step in which requests with the adapters `running` run; write at most `max_writes` parts into slots.

        `prefilling` are those of the adapters that have a request which is still prefilling.
        """
        self._step += 1
        digests = set(running)
        self._in_use = set()
        for index, slot in enumerate(self._slots):
            if slot.adapter is not None and slot.adapter.digest in digests:
                self._in_use.add(index)
                slot.used = self._step
                slot.decoded += slot.adapter.digest not in prefilling
        for slot in self._slots:
            while slot.writes and max_writes > 0:
                self._executor.write_adapter(slot.writes.popleft())
                max_writes -= 1

    def overdue(self) -> list[str]:
        """Return the adapters in use whose turn is over, longest turn first; [] unless another waits for too long."""
        if not any(self._step - since > TURN for since in self._refused.values()):
            return []
        slots = [self._slots[index] for index in self._in_use]
        decoded = {slot.adapter.digest: slot.decoded for slot in slots if slot.adapter and slot.decoded > TURN}
        return sorted(decoded, key=decoded.__getitem__, reverse=True)

    def vacate(self, digest: str) -> None:
        """Give the slot of an adapter free, because none of its requests runs any more."""
        self._in_use = {i for i in self._in_use if (kept := self._slots[i].adapter) and kept.digest != digest}

    @property
    def is_writing(self) -> bool:
        """True while parts of any adapter are still to be written into a slot."""
        return any(slot.writes for slot in self._slots)

    def is_ready(self, digest: str) -> bool:
        """Return True if a waiting request with this adapter may begin in the step that is being planned.

        If not, its adapter gets a slot as soon as one is free.
        """
        found = next((i for i, slot in enumerate(self._slots) if slot.adapter and slot.adapter.digest == digest), None)
        if found is None:
            self._find_slot(digest)
            return False
        slot = self._slots[found]
        if slot.writes or (self._may_be_preempted(slot) and self._others_wait_too_long(digest)):
            return False
        self._in_use.add(found)
        slot.begun = self._step if slot.begun is None else slot.begun
        slot.used = self._step
        return True

    def forget(self, digest: str) -> None:
        """Withdraw the wait for a slot and the unfinished writes of an adapter that no request uses any more."""
        self._refused.pop(digest, None)
        for slot in self._slots:
            if slot.writes and slot.adapter is not None and slot.adapter.digest == digest:
                slot.adapter = None
                slot.writes.clear()

    def _may_be_preempted(self, slot: _Slot) -> bool:
        return slot.begun is not None and self._step - slot.begun > MAX_WAIT

    def _others_wait_too_long(self, digest: str) -> bool:
        return any(self._step - since > MAX_WAIT for other, since in self._refused.items() if other != digest)

    def _find_slot(self, digest: str) -> None:
        adapter = self._store.get(digest)
        if adapter is None:
            return
        free = [slot for index, slot in enumerate(self._slots) if index not in self._in_use and not self._is_kept(slot)]
        if not free:
            self._refused.setdefault(digest, self._step)
            return
        self._refused.pop(digest, None)
        slot = min(free, key=lambda slot: slot.used)
        slot.adapter, slot.begun, slot.decoded, slot.used = adapter, None, 0, self._step
        slot.writes.extend(adapter.writes(self._slots.index(slot)))

    def _is_kept(self, slot: _Slot) -> bool:
        """Return True if a slot's adapter has requests, but none of them has run since the adapter got the slot."""
        waited_for = slot.adapter is not None and self._store.is_used(slot.adapter.digest)
        return waited_for and (bool(slot.writes) or slot.begun is None)
