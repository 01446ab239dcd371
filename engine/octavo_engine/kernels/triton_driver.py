"""Compiles Triton's driver module for CUDA beforehand, for machines with a GPU and without a C compiler.

    python -m octavo_engine.kernels.triton_driver

compiles it into the folder `built`, as the build of an image does; that needs gcc, and neither a GPU nor its driver.
Otherwise Triton compiles it when it first finds a GPU. Kernels need no C compiler.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

PACKAGED = Path(__file__).parent / "built"
"""The folder of the module that was compiled beforehand."""
_NAME, _LIBCUDA = "cuda_utils", "libcuda.so.1"


def use_packaged() -> None:
    """Let Triton take the module from PACKAGED, if it is there and this machine has no compiler."""
    if _packaged().exists() and not any(map(shutil.which, ("gcc", "clang"))):
        import triton

        triton.knobs.build.impl = _build


def _build(name: str, *_: object) -> str:
    """Return the path of a compiled C module that Triton asks for; RuntimeError if it is not the packaged one."""
    if name != _NAME:
        raise RuntimeError(f"Triton needs a C compiler for its module {name}: install gcc")
    return str(_packaged())


def _packaged() -> Path:
    return PACKAGED / f"{_NAME}{sysconfig.get_config_var('EXT_SUFFIX')}"


def compile_module() -> Path:
    """Compile the module of the installed Triton into PACKAGED, and return its path; CalledProcessError if gcc fails.

    It is linked to an empty library of the name of CUDA's driver, whose functions are found when the module is loaded.
    """
    from triton.backends.nvidia import driver
    from triton.runtime import build

    PACKAGED.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        empty = Path(folder, "empty.c")
        empty.touch()
        options = ("-shared", f"-Wl,-soname,{_LIBCUDA}", "-o", f"{folder}/{_LIBCUDA}")
        subprocess.run(("gcc", *options, str(empty)), check=True)
        source = Path(driver.dirname, "driver.c")
        kept = ["-Wl,--no-as-needed", f"-l:{_LIBCUDA}"]  # though the empty library has none of the functions
        found = build._build(_NAME, str(source), folder, [folder], driver.include_dirs, driver.libraries, kept)
        shutil.copy(found, _packaged())
        return _packaged()


if __name__ == "__main__":
    sys.stdout.write(f"{compile_module()}\n")
