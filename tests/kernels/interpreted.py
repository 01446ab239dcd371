"""The checks of all kernels, run by Triton's interpreter (the stand-in for a GPU).

Triton decides when it is first imported whether it interprets, so this file needs a process of its own with
TRITON_INTERPRET=1: test_interpreted.py starts it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl
from triton.runtime import interpreter

from tests.kernels.check import Check, modules

_TYPES = {
    tl.float8e4nv: (torch.float8_e4m3fn, torch.uint8),
    tl.float16: (torch.float16, torch.uint16),
    tl.bfloat16: (torch.bfloat16, torch.uint16),
    tl.float32: (torch.float32, torch.uint32),
}
"""Triton's type, PyTorch's, and the one that the interpreter keeps its bits in."""

ALL = [
    pytest.param(check, id=f"{module.__name__.rpartition('.')[2].removesuffix('_checks')}-{check.name}")
    for module in modules()
    for check in module.CHECKS
    if not check.large
]


@pytest.fixture(autouse=True)
def e4m3_as_on_hardware(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter's own casts to e4m3 lose carries (31 becomes 16) and make numbers of NaN; PyTorch's do not."""
    plain = interpreter._convert_float

    def convert(data: Any, source: Any, target: Any, rounding: Any) -> Any:
        if tl.float8e4nv not in (source, target) or not {source, target} <= set(_TYPES):
            return plain(data, source, target, rounding)
        values = torch.from_numpy(np.ascontiguousarray(data)).view(_TYPES[source][0])
        if target == tl.float8e4nv:
            values = values.float().clamp(-448, 448)
        dtype, bits = _TYPES[target]
        return values.to(dtype).view(bits).numpy()

    monkeypatch.setattr(interpreter, "_convert_float", convert)


@pytest.mark.parametrize("check", ALL)
def test_equals_its_reference(check: Check) -> None:
    torch.manual_seed(0)
    check.run(torch.device("cpu"))
