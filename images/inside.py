"""Prints as JSON what can be checked only inside the engine's image; images/check.py runs it in the engine's pod.

It needs no GPU: Triton compiles one of Octavo's kernels for Hopper, and gcc compiles the driver module that Triton
would compile on a machine with a GPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from octavo_engine.kernels.cpu.build import built_library
from octavo_engine.kernels.norm import rms_norm_kernel

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


def compiler_says() -> str:
    """Return gcc's errors for Triton's driver module, which is compiled on machines with a GPU; empty: none."""
    folder = Path(triton.__file__).parent / "backends" / "nvidia"
    includes = [f"-I{folder / 'include'}", f"-I{sysconfig.get_paths(scheme='posix_prefix')['include']}"]
    command = ["gcc", "-c", "-o", "/tmp/driver.o", *includes, str(folder / "driver.c")]  # noqa: S108 - in the pod
    return subprocess.run(command, capture_output=True, text=True, check=False).stderr


json.dump(
    {
        "user": os.getuid(),
        "read_only_root": bool(os.statvfs("/").f_flag & os.ST_RDONLY),
        "cpu_kernels": str(built_library()),
        "cuda": torch.version.cuda,
        "cubin_bytes": cubin_bytes(),
        "compiler_says": compiler_says(),
    },
    sys.stdout,
)
