"""`make sanitized`: the tests of the C kernels, with kernels that AddressSanitizer and UBSan check.

The kernels of each instruction set that this machine has are compiled with both sanitizers into the user's cache,
beside the usual ones. The first thing that a sanitizer finds ends pytest with its report.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests import kernel_tests


def runtimes() -> str:
    """Return the sanitizers' libraries, which have to be there before Python's first allocation."""
    found = []
    for name in ("libasan.so", "libubsan.so"):
        command = ("gcc", f"-print-file-name={name}")
        found.append(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())
    missing = [name for name in found if not Path(name).is_file()]
    if missing:
        sys.exit(f"octavo: needs gcc's sanitizers, and it has no {' and no '.join(missing)}")
    return " ".join(found)


def main() -> int:
    """Run pytest; arguments are passed to it."""
    environment = {
        **os.environ,
        "LD_PRELOAD": runtimes(),
        "PYTHONMALLOC": "malloc",  # so that each object has an allocation of its own
        "ASAN_OPTIONS": "detect_leaks=0",  # Python keeps objects until it ends
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    chosen = ["-k", f"not {kernel_tests.LIMITED}", *sys.argv[1:]]
    return kernel_tests.run(
        "tests.sanitized.plugin", *chosen, more=("model/lora/test_lora.py",), environment=environment
    )


if __name__ == "__main__":
    sys.exit(main())
