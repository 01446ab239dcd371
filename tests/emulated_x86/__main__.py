"""`make emulated-x86`: the tests of the C kernels at every level of x86, also those that this CPU lacks."""

from __future__ import annotations

import sys

from tests import kernel_tests

if __name__ == "__main__":
    sys.exit(kernel_tests.run("tests.emulated_x86.plugin", *sys.argv[1:]))
