"""The setting of how long OpenMP's threads spin while they wait for each other, before they sleep.

A step on a CPU has hundreds of such waits. By default GCC's OpenMP spins for milliseconds, which is right for cores
that nothing else uses. Beside one busy process, though, the spinning threads take the CPU from the thread that they
wait for, and steps take 2 to 50 times as long. A thread that sleeps soon frees its core at once.
"""

from __future__ import annotations

from collections.abc import MutableMapping

SPIN_COUNT = "1000"
"""Iterations of the spin loop, 20 to 50 us in all: longer than most waits of a step, and far shorter than a time slice
of the kernel's scheduler (measured by bench/neighbours.py)."""


def sleep_soon(environ: MutableMapping[str, str]) -> None:
    """Set the environment so that waiting threads sleep soon, unless the user has set how they wait.

    Call it before torch is imported: OpenMP reads its settings as it is loaded.
    """
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & environ.keys():
        environ["GOMP_SPINCOUNT"] = SPIN_COUNT
