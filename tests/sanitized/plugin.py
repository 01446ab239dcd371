"""A plugin for pytest: the C kernels are compiled with AddressSanitizer and UBSan, whose findings end the process."""

from __future__ import annotations

import os

from octavo_engine.kernels.cpu import build

build._OPTIONS = (
    *build._OPTIONS,
    "-O1",
    "-g",
    "-fno-omit-frame-pointer",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=undefined",
)
os.environ.pop("LD_PRELOAD")  # the compiler needs none
