"""The checks of all kernels, run by Triton's interpreter (the stand-in for a GPU).

Triton decides when it is first imported whether it interprets, so this file needs a process of its own with
TRITON_INTERPRET=1: test_interpreted.py starts it.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from triton.runtime.interpreter import InterpretedFunction, _patch_lang

from tests.kernels.check import Check, modules
from tests.kernels.rounding import round_as_hardware

PATCHED: set[Any] = set()
"""Functions for whose sake triton.language.core is patched; that is not undone."""


def call_without_patching(function: InterpretedFunction, *arguments: Any, **named: Any) -> Any:
    """A call of one kernel's function by another.

    Triton patches triton.language when a kernel begins, and anew at each such call, which took a third of the time of
    these checks. Only its own functions, which use triton.language.core, need more than the kernel's, and only once.
    """
    if function.fn not in PATCHED and function.fn.__module__.startswith("triton."):
        PATCHED.add(function.fn)
        _patch_lang(function.fn)
    return function.rewrite()(*arguments, **named)


InterpretedFunction.__call__ = call_without_patching
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
