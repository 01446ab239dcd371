"""Configures how a thread computes on a CPU: the number of PyTorch's threads, and how denormal numbers are treated."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from octavo_engine.runner.cores import usable_cores


def configure_cpu_threads(environ: Mapping[str, str], ranks: int = 1) -> None:
    """Set PyTorch's threads to the cores that each of `ranks` processes may use, unless OMP_NUM_THREADS is set.

    The calling thread, and OpenMP's threads that it starts later, take numbers below 1.2e-38 for 0: x86 processors take
    over a hundred cycles for each, and the decays of recurrent layers have many of them.
    """
    torch.set_flush_denormal(True)
    if "OMP_NUM_THREADS" not in environ:
        torch.set_num_threads(max(1, usable_cores() // ranks))
