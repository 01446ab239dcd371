"""Prints as JSON what can be checked only inside the engine's image; images/check.py runs it in the engine's pod.

It needs no GPU: Triton compiles one of Octavo's kernels for Hopper.
"""

from __future__ import annotations

import json
import os
import shutil
import sys

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from octavo_engine.kernels.cpu.build import built_library
from octavo_engine.kernels.norm import rms_norm_kernel
from octavo_engine.kernels.triton_driver import PACKAGED

HOPPER = GPUTarget("cuda", 90, 32)


def cubin_bytes() -> int:
    """Compile a kernel for Hopper; returns the size of its machine code."""
    types = {"output": "*bf16", "x": "*bf16", "weight": "*bf16", "eps": "fp32"}
    types |= {"x_stride": "i32", "residual_stride": "i32"}
    constants = {"scales": None, "given": None, "summed": None, "residual": None, "RESIDUAL": False, "GROUP": 0}
    constants |= {"SIZE": 576, "SIZE_PADDED": 1024}
    signature = {name: types.get(name, "constexpr") for name in rms_norm_kernel.arg_names}
    source = ASTSource(fn=rms_norm_kernel, signature=signature, constexprs=constants)
    return len(triton.compile(source, target=HOPPER).asm["cubin"])


json.dump(
    {
        "user": os.getuid(),
        "read_only_root": bool(os.statvfs("/").f_flag & os.ST_RDONLY),
        "cpu_kernels": str(built_library()),
        "cuda": torch.version.cuda,
        "cubin_bytes": cubin_bytes(),
        "compiler": shutil.which("gcc") or shutil.which("clang") or "",
        "triton_driver": [str(path) for path in PACKAGED.glob("*.so")],
    },
    sys.stdout,
)
