"""Memory that is not initialised holds NaN, so that what a kernel leaves out is seen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def poisoned() -> Iterator[None]:
    """Whatever `torch.empty` gives meanwhile is NaN."""
    torch.use_deterministic_algorithms(True)  # one of whose means is that (torch.utils.deterministic)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
