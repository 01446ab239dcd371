"""`make arm64`: the tests of the C kernels, with the kernels for arm64 under qemu and all else on this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests import kernel_tests
from tests.arm64 import COMPILER, EMULATOR, FOLDER

HERE = Path(__file__).parent


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
    return kernel_tests.run("tests.arm64.plugin", *sys.argv[1:], environment=environment)


if __name__ == "__main__":
    sys.exit(main())
