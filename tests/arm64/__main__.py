"""`make arm64`: the tests of the C kernels, with the kernels for arm64 under qemu and all else on this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.arm64 import COMPILER, EMULATOR, FOLDER

HERE = Path(__file__).parent
CHECKOUT = HERE.parents[1]
TESTS = (
    "cpu_kernels/test_cpu_kernels.py",
    "cpu_kernels/test_coded.py",
    "model/layers/test_fused_layers.py",
    "model/gguf/test_gguf_blocks.py",
    "runner/test_sampler.py",
)


def main() -> int:
    """Compile the helpers and run pytest; arguments are passed to it."""
    if not shutil.which(COMPILER) or not shutil.which(EMULATOR):
        sys.exit(
            "octavo: needs Debian's packages: apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user"
        )
    FOLDER.mkdir(parents=True, exist_ok=True)
    malloc, caller = FOLDER / "shared_malloc.so", FOLDER / "call_kernels"
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", malloc, HERE / "shared_malloc.c"], check=True)
    subprocess.run([COMPILER, "-O2", "-o", caller, HERE / "call_kernels.c"], check=True)
    environment = {**os.environ, "LD_PRELOAD": str(malloc), "PYTHONMALLOC": "malloc"}
    command = [sys.executable, "-m", "pytest", "-p", "tests.arm64.plugin", "-p", "no:cacheprovider"]
    tests = [str(CHECKOUT / "tests" / "engine" / name) for name in TESTS]
    return subprocess.run([*command, *tests, *sys.argv[1:]], cwd=CHECKOUT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
