"""`make emulated-x86`: the tests of the C kernels at every level of x86, also those that this CPU lacks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
TESTS = (
    "cpu_kernels/test_cpu_kernels.py",
    "cpu_kernels/test_coded.py",
    "model/layers/test_fused_layers.py",
    "model/gguf/test_gguf_blocks.py",
    "runner/test_sampler.py",
)


def main() -> int:
    """Run pytest; arguments are passed to it."""
    command = [sys.executable, "-m", "pytest", "-p", "tests.emulated_x86.plugin", "-p", "no:cacheprovider"]
    tests = [str(CHECKOUT / "tests" / "engine" / name) for name in TESTS]
    return subprocess.run([*command, *tests, *sys.argv[1:]], cwd=CHECKOUT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
