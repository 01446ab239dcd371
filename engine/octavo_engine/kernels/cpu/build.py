"""Compiles the C files of this folder for an instruction set, once: the result is kept.

    python -m octavo_engine.kernels.cpu.build [--native]

compiles for all of them, or for this machine's, into the folder `built`, as an image's build and `make setup` do;
otherwise it happens at the first start (5 to 10 s on an idle machine), into the user's cache. Nothing of torch is
compiled in: the functions take pointers and numbers.
"""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from octavo_engine.kernels.cpu.features import cpu_flags

log = logging.getLogger(__name__)

HERE = Path(__file__).parent
PACKAGED = HERE / "built"
"""The folder of kernels that were compiled beforehand: not among the modules, or tools that walk the package would take
it for one."""
_COMPILER = "gcc"
_TIMEOUT = 600.0
"""Seconds: on two cores that ten others use it took two minutes."""
_OPTIONS = ("-O3", "-std=gnu11", "-fno-math-errno", "-fopenmp", "-shared", "-fPIC")
LEVELS = {
    "avx512_bf16": (
        ("avx512_bf16", "avx512_vnni", "avx512vl", "avx512dq", "avx512bw"),
        ("-march=x86-64-v4", "-mavx512bf16", "-mavx512vnni"),
    ),
    "avx512_vnni": (("avx512_vnni", "avx512vl", "avx512dq", "avx512bw"), ("-march=x86-64-v4", "-mavx512vnni")),
    "avx512": (("avx512vl", "avx512dq", "avx512bw"), ("-march=x86-64-v4",)),
    "avx_vnni": (
        ("avx_vnni", "avx2", "fma", "f16c", "bmi1", "bmi2", "abm", "movbe"),
        ("-march=x86-64-v3", "-mavxvnni"),
    ),
    "avx2": (("avx2", "fma", "f16c", "bmi1", "bmi2", "abm", "movbe"), ("-march=x86-64-v3",)),
}
"""Instruction sets, the best first: the flags of /proc/cpuinfo that each needs, and the compiler's options for it."""


class BuildError(Exception):
    """There is no compiler, or it failed; the message says which."""


def built_library() -> Path:
    """The compiled kernels for this machine, compiled now if they are not there yet; BuildError if that fails."""
    return library_for(_level())


def library_for(level: str) -> Path:
    """The compiled kernels for the instruction set `level` of LEVELS; otherwise as `built_library`."""
    for folder in (PACKAGED, _cache()):
        if (found := folder / _file_name(level)).exists():
            return found
    try:
        folder = _cache()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:  # a read-only file system: compiled again at the next start
        folder = Path(tempfile.mkdtemp(prefix="octavo-kernels-"))
    log.info("compiling the kernels for this CPU, once: 5 to 10 s on an idle machine")
    return compile_to(folder, level)


def compile_to(folder: Path, level: str) -> Path:
    """The kernels for instruction set `level`, in `folder`; BuildError if the compiler refuses."""
    target = folder / _file_name(level)
    partial = folder / f".{os.getpid()}-{target.name}"
    command = (_COMPILER, *_OPTIONS, *LEVELS[level][1], "-o", str(partial), *map(str, _sources("*.c")), "-lm")
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        raise BuildError(f"{_COMPILER} took longer than {_TIMEOUT:g} s") from None
    except OSError as error:
        raise BuildError(f"{_COMPILER} cannot be run: {error}") from None
    if result.returncode:
        raise BuildError(f"{_COMPILER} failed: {result.stderr.strip()[-2000:]}")
    partial.replace(target)  # at once: another process may be looking
    return target


def _sources(pattern: str) -> list[Path]:
    return sorted(HERE.glob(pattern))


def _file_name(level: str) -> str:
    """Changes whenever a source or an option does."""
    digest = hashlib.sha256(repr((_OPTIONS, LEVELS[level])).encode())
    for source in _sources("*.[ch]"):
        digest.update(source.read_bytes())
    return f"kernels-{level}-{digest.hexdigest()[:16]}.so"


def _level() -> str:
    """The best of LEVELS that this machine has; BuildError if it has none."""
    flags = cpu_flags()
    for level, (needed, _) in LEVELS.items():
        if flags.issuperset(needed):
            return level
    raise BuildError("it has no AVX2")


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "octavo" / "kernels"


def main() -> None:
    """Compile for all LEVELS, or with --native for this machine's alone, into PACKAGED."""
    PACKAGED.mkdir(exist_ok=True)
    try:
        for level in [_level()] if "--native" in sys.argv[1:] else LEVELS:
            sys.stdout.write(f"{compile_to(PACKAGED, level)}\n")
    except BuildError as error:
        sys.exit(
            f"octavo: the kernels for CPUs were not compiled: {error}. The engine tries again when it starts, "
            "and computes with PyTorch, more slowly, where it cannot"
        )


if __name__ == "__main__":
    main()
