"""The kernels without a GPU: interpreted, they give the results of their references."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.kernels.check import modules

ROOT = Path(__file__).parents[2]


HALVES = ("sampling or decoder", "not (sampling or decoder)")
"""Checks, by pytest's -k, that take about as long; computed on a core each."""


@pytest.mark.timeout(900)  # of all checks together; each has its own limit
def test_interpreted_kernels_equal_their_references() -> None:
    """All checks that are not too large, in processes whose Triton interprets."""
    path = Path(__file__).with_name("interpreted.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout=250", str(path), "-k"]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}

    def run(half: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, half], env=environment, capture_output=True, text=True, check=False, cwd=ROOT)

    with ThreadPoolExecutor(len(HALVES)) as pool:
        results = list(pool.map(run, HALVES))
    total = 0
    for result in results:
        assert result.returncode == 0, result.stdout[-8000:] + result.stderr[-2000:]
        passed = re.search(r"(\d+) passed", result.stdout)
        assert passed is not None
        assert "skipped" not in result.stdout
        total += int(passed[1])
    assert total == sum(not check.large for module in modules() for check in module.CHECKS)
