"""Fills freshly allocated memory with NaN, so that a kernel that reads or leaves unwritten memory is found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch


@contextmanager
def poisoned() -> Iterator[None]:
    """Within it `torch.empty` and `torch.empty_like` give NaN, or the largest integer."""
    with patch("torch.empty", _filled(torch.empty)), patch("torch.empty_like", _filled(torch.empty_like)):
        yield


def _filled(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def filled(*arguments: Any, **options: Any) -> torch.Tensor:
        new = make(*arguments, **options)
        return new.fill_(torch.nan if new.is_floating_point() else torch.iinfo(new.dtype).max)

    return filled


def half_precision(device: torch.device) -> torch.dtype:
    """bfloat16; where Triton interprets float16, as its interpreter does not multiply matrices of bfloat16."""
    return torch.bfloat16 if device.type == "cuda" else torch.float16
