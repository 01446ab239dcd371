"""A timer for steps by the device's clock."""

from __future__ import annotations

import time

import torch


class StepTimer:
    """Measures the time from its creation to `stop` on the device, without the wait for earlier steps."""

    def __init__(self, device: torch.device) -> None:
        self._started = self._stopped = time.perf_counter()
        self._events: list[torch.cuda.Event] = []
        if device.type == "cuda":
            self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]  # type: ignore[no-untyped-call]
            self._events[0].record()

    def stop(self) -> None:
        """End the measurement: the step is completely launched."""
        self._stopped = time.perf_counter()
        if self._events:
            self._events[1].record()

    def ended(self) -> bool:
        """Return True if the device has computed all of a launched step; does not wait."""
        return not self._events or bool(self._events[1].query())  # type: ignore[no-untyped-call]

    def seconds(self) -> float:
        """Return the duration in seconds; on a GPU this waits for the step to end."""
        if not self._events:
            return self._stopped - self._started
        self._events[1].synchronize()
        return float(self._events[0].elapsed_time(self._events[1])) / 1000
