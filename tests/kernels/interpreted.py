"""The checks of all kernels, run by Triton's interpreter (the stand-in for a GPU).

Triton decides when it is first imported whether it interprets, so this file needs a process of its own with
TRITON_INTERPRET=1: test_interpreted.py starts it.
"""

from __future__ import annotations

import pytest
import torch

from tests.kernels.check import Check, modules
from tests.kernels.interpreter import interpret_quickly
from tests.kernels.rounding import round_as_hardware

interpret_quickly()
round_as_hardware()
ALL = [
    pytest.param(check, id=f"{module.__name__.rpartition('.')[2].removesuffix('_checks')}-{check.name}")
    for module in modules()
    for check in module.CHECKS
    if not check.large
]


@pytest.mark.parametrize("check", ALL)
def test_equals_its_reference(check: Check) -> None:
    torch.manual_seed(0)
    check.run(torch.device("cpu"))
