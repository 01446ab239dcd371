"""The kernels as Hopper runs them: they compile, nothing spills, products run on tensor cores."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kernels.check import Build, modules
from tests.kernels.hopper import compiled


@pytest.fixture(autouse=True)
def fresh_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Compile in earnest, not from an earlier run's cache."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


@pytest.mark.parametrize("build", [pytest.param(build, id=build.name) for m in modules() for build in m.BUILDS])
def test_builds_for_hopper(build: Build) -> None:
    resources = compiled(build)
    assert resources.spilled == 0, "bytes that found no register"
    assert resources.registers <= build.max_registers
    assert resources.shared <= build.max_shared
    assert [instruction for instruction in build.sass if instruction not in resources.sass] == []
