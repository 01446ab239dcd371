"""The real engine process with a fault in its device thread, named by OCTAVO_TEST_FAULT as `kind at step`.

`error`: the step raises. `stuck`: it never ends. `slow`: it takes a second and ends well.
"""

from __future__ import annotations

import os
import sys
import time

from octavo_engine.core.step import StepPlan
from octavo_engine.engine import process
from octavo_engine.runner.worker import ForwardedStep, Worker

kind, step = os.environ["OCTAVO_TEST_FAULT"].split()
forward = Worker.forward


def faulty(worker: Worker, plan: StepPlan) -> ForwardedStep:
    if plan.step == int(step):
        if kind == "error":
            raise RuntimeError("an illegal memory access was encountered")
        time.sleep(1 if kind == "slow" else 3600)
    return forward(worker, plan)


if __name__ == "__main__":
    Worker.forward = faulty  # type: ignore[method-assign]
    code = process.main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
