"""Checks of kernels as GPUs before Ada run them, which do not convert to e4m3 and back: they take its bits."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import torch

from octavo_engine.kernels import fp8


def by_bits(run: Callable[[torch.device], str | None]) -> Callable[[torch.device], str | None]:
    """The same check, with e4m3 as bits."""

    def check(device: torch.device) -> str | None:
        with patch.object(fp8, "converts_fp8", lambda _: False):
            return run(device)

    return check
