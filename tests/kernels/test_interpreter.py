"""What Triton's interpreter refuses, the quicker one refuses too."""

from __future__ import annotations

import pytest
from triton.language import core

from tests.kernels.interpreter import sharing_attributes


def test_a_size_that_is_no_integer_is_refused_after_an_integer_of_that_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core.block_type, "__init__", sharing_attributes(core.block_type.__init__))
    first, second = (core.block_type(core.float32, [core.constexpr(64)]) for _ in range(2))
    assert first == second
    assert vars(first) == vars(second)
    for size in (64.0, core.constexpr(64.0)):
        with pytest.raises(TypeError, match="must have type"):
            core.block_type(core.float32, [size])
