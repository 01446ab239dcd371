"""The LoRA adapters of a running engine: the store of those that are loaded, and the device's slots."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from octavo_engine.core.request import FinishReason
from octavo_engine.core.request_state import RequestState
from octavo_engine.core.scheduler import Scheduler
from octavo_engine.core.step import RequestOutput
from octavo_engine.engine.adapter_slots import AdapterSlots
from octavo_engine.engine.adapter_store import AdapterStore
from octavo_engine.runner.executor import Executor

_IDLE_PARTS = 4
"""The most parts of adapters that an idle device writes at once: a request that arrives meanwhile waits for them."""


class Adapters:
    """The adapter store and the slots together, for the loop; tells the scheduler which requests may begin."""

    def __init__(self, store: AdapterStore, max_loras: int, scheduler: Scheduler, executor: Executor) -> None:
        self.store, self.max_loras, self._scheduler, self._executor = store, max_loras, scheduler, executor
        self._slots = AdapterSlots(max_loras, store, executor)
        store.on_unused = self._slots.forget
        scheduler.planner.policy.adapter_is_ready = self._slots.is_ready

    def before_plan(self, running: Iterable[RequestState], *, device_is_idle: bool) -> None:
        """Write parts of adapters into slots before a step is planned, so few that the step is not delayed for long."""
        max_writes = 1 if not device_is_idle else _IDLE_PARTS if self._executor.idle else 0
        states = list(running)
        prefilling = {state.request.adapter for state in self._scheduler.running.prefilling}
        digests = (state.request.adapter for state in states)
        self._slots.before_plan(digests, prefilling=prefilling, max_writes=max_writes)
        for digest in self._slots.overdue():
            if self._requeue([state for state in states if state.request.adapter == digest]):
                self._slots.vacate(digest)
                break

    def _requeue(self, states: Sequence[RequestState]) -> bool:
        """Preempt running requests and queue them again; if one must run to its end, preempt none and return False."""
        planner = self._scheduler.planner
        if not all(map(planner.policy.preemptible, states)):
            return False
        for state in states:
            planner.counters.preemptions += 1
            planner.requeue(state)
        return True

    @property
    def is_loading(self) -> bool:
        """True while any adapter is being read, or written to the device."""
        return self.store.is_reading or self._slots.is_writing

    def end_failed(self) -> list[RequestOutput]:
        """End the requests whose adapter could not be read again, and return their outputs."""
        ends = (
            self._scheduler.abort(request_id, FinishReason.ERROR, error=f"the adapter is lost: {reason}")
            for request_id, reason in self.store.take_reread()
        )
        return [end for end in ends if end is not None]

    def names_in_use(self, running: Iterable[RequestState]) -> tuple[list[str], list[str]]:
        """Return the names of adapters that requests run with, and of those that requests wait for."""
        return self.store.names_in_use({state.request_id for state in running})
