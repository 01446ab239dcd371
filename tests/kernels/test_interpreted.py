"""The kernels without a GPU: interpreted, they equal their references."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.kernels.check import modules

ROOT = Path(__file__).parents[2]


def test_interpreted_kernels_equal_their_references() -> None:
    """All checks that are not too large, in a process whose Triton interprets."""
    path = Path(__file__).with_name("interpreted.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout=250", str(path)]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=ROOT)
    assert result.returncode == 0, result.stdout[-8000:] + result.stderr[-2000:]
    passed = re.search(r"(\d+) passed", result.stdout)
    assert passed is not None
    assert int(passed[1]) == sum(not check.large for module in modules() for check in module.CHECKS)
    assert "skipped" not in result.stdout
