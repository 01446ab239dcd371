"""The real engine process with a fault in its device thread, named by OCTAVO_TEST_FAULT as `kind at step`.

`error`: the step raises. `stuck`: it never ends. `slow`: it takes a second and succeeds. `thread`: the thread ends
before the step, by an error outside its work. `memory`: memory runs out in the last layer; `no-memory`: also when the
step is repeated.
"""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import Future
from typing import Any

import torch

from octavo_engine.core.step import StepPlan
from octavo_engine.engine import process
from octavo_engine.model.decoder import Decoder
from octavo_engine.runner.device_thread import DeviceThread
from octavo_engine.runner.worker import ForwardedStep, Worker

kind, step = os.environ["OCTAVO_TEST_FAULT"].split()
forward, submit = Worker.forward, DeviceThread.submit


def without_memory(decoder: Decoder) -> None:
    """Have its last layer fail for lack of memory, once or always."""
    last = decoder.layers[-1]

    def fail(*_: object) -> None:
        if kind == "memory":
            removed.remove()
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB")

    removed = last.register_forward_pre_hook(fail)


def faulty(worker: Worker, plan: StepPlan, **kwargs: bool) -> ForwardedStep:
    if plan.step == int(step):
        if kind == "error":
            raise RuntimeError("an illegal memory access was encountered")
        if "memory" in kind:
            without_memory(worker._decoder)
            return forward(worker, plan, **kwargs)
        time.sleep(1 if kind == "slow" else 3600)
    return forward(worker, plan, **kwargs)


def submit_behind_an_error(thread: DeviceThread, *work: Any) -> Future[Any]:
    """Have the thread call what cannot be called before the step."""
    if isinstance(work[-1], StepPlan) and work[-1].step == int(step):
        thread._jobs.put("no job")  # type: ignore[arg-type]
    return submit(thread, *work)


if __name__ == "__main__":
    if kind == "thread":
        DeviceThread.submit = submit_behind_an_error  # type: ignore[method-assign]
    Worker.forward = faulty  # type: ignore[method-assign]
    code = process.main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
