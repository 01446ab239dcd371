"""Compiles the C files of this folder for an instruction set, once; the compiled file is kept.

    python -m octavo_engine.kernels.cpu.build [--native]

compiles for every instruction set of this machine's architecture into the folder `built`, as the build of an image
does. With --native, as in `make setup`, `built` gets the kernels for this machine alone, as a copy from the user's
cache, which all checkouts share. Without this step the engine compiles them into that cache at its first start (5 to
10 s on an idle machine). The functions take pointers and numbers, so torch's headers and libraries are not needed.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

from octavo_engine.kernels.cpu.features import cpu_flags

log = logging.getLogger(__name__)

HERE = Path(__file__).parent
PACKAGED = HERE / "built"
"""The folder of kernels that were compiled beforehand. It is apart from the modules, since tools that walk the package
would take a compiled file for a module."""
_COMPILER = "gcc"
_TIMEOUT = 600.0
"""Seconds that the compiler may take: on two cores shared with ten other programs it took two minutes."""
_OPTIONS = ("-O3", "-std=gnu11", "-fno-math-errno", "-fopenmp", "-shared", "-fPIC")
ARCHITECTURES: dict[str, dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "x86_64": {
        "avx512_bf16_amx": (
            ("amx_tile", "amx_bf16", "avx512_bf16", "avx512_vnni", "avx512vl", "avx512dq", "avx512bw"),
            ("-march=x86-64-v4", "-mavx512bf16", "-mavx512vnni", "-mamx-tile", "-mamx-bf16"),
        ),
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
    },
    "aarch64": {
        "neon_bf16": (("asimddp", "bf16", "i8mm", "atomics", "asimdrdm"), ("-march=armv8.2-a+dotprod+bf16+i8mm",)),
        "neon_dotprod": (("asimddp", "atomics", "asimdrdm"), ("-march=armv8.2-a+dotprod",)),
        "neon": (("asimd",), ("-march=armv8-a",)),
    },
}
"""The instruction sets of each, fastest first: the flags of `cpu_flags` that one needs, and the compiler's options."""
LEVELS = ARCHITECTURES.get(platform.machine(), {})
"""Those of this machine's architecture."""


class BuildError(Exception):
    """There is no compiler, or it failed; the message says which."""


class OldCPUError(BuildError):
    """This CPU has none of the instruction sets that the kernels are written for."""


def built_library() -> Path:
    """Return the compiled kernels for this machine, and compile them first if needed; BuildError if that fails."""
    return library_for(_level())


def library_for(level: str) -> Path:
    """Return the compiled kernels for the instruction set `level` of LEVELS; otherwise as `built_library`."""
    packaged = PACKAGED / _file_name(level)
    return packaged if packaged.exists() else _kept(level)


def _kept(level: str) -> Path:
    """Return the kernels in the user's cache, compiled first if needed; in a new folder if the cache cannot be used."""
    folder = kernel_cache() or Path(tempfile.mkdtemp(prefix="octavo-kernels-"))
    found = folder / _file_name(level)
    if found.exists() and not _untrusted(found):
        return found
    log.info("compiling the kernels for this CPU, once: 5 to 10 s on an idle machine")
    return compile_to(folder, level)


def kernel_cache() -> Path | None:
    """Return the user's folder of kernels, created if needed; None where there can be none that is theirs alone."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "octavo" / "kernels"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        reason = _untrusted(folder)
    except OSError:  # a read-only file system: compiled again at the next start
        return None
    if reason:
        log.warning("%s is not used: %s; make it your own with chmod 700, or set XDG_CACHE_HOME", folder, reason)
        return None
    return folder


def _untrusted(path: Path) -> str:
    """Return why another user may have written what is at `path`; empty if only this user and root can."""
    found = path.stat()
    if found.st_uid not in {os.geteuid(), 0}:
        return f"it belongs to user {found.st_uid}"
    return "others may write to it" if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else ""


def compile_to(folder: Path, level: str) -> Path:
    """Compile the kernels for the instruction set `level` into `folder`; BuildError if that fails."""
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
    partial.chmod(0o755)  # with any umask: pods of other users read it, and only this user writes it
    partial.replace(target)  # at once: another process may be looking
    return target


def _sources(pattern: str) -> list[Path]:
    return sorted(HERE.glob(pattern))


def _file_name(level: str) -> str:
    """Return the compiled file's name, which changes when a source or a compiler option changes."""
    digest = hashlib.sha256(repr((_OPTIONS, LEVELS[level])).encode())
    for source in _sources("*.[ch]"):
        digest.update(source.read_bytes())
    return f"kernels-{level}-{digest.hexdigest()[:16]}.so"


def _level() -> str:
    """Return the fastest of LEVELS that this machine has; OldCPUError if it has none."""
    flags = cpu_flags()
    for level, (needed, _) in LEVELS.items():
        if flags.issuperset(needed):
            return level
    raise OldCPUError("it has neither AVX2 nor NEON")


def _copied(level: str) -> Path:
    """Copy the user's kernels into PACKAGED, where the pods of a development cluster find them; return the copy."""
    target = PACKAGED / _file_name(level)
    if not target.exists():
        partial = PACKAGED / f".{os.getpid()}-{target.name}"
        shutil.copy(_kept(level), partial)
        partial.replace(target)
    return target


def main() -> None:
    """Compile for all LEVELS, or with --native only for this machine's, into PACKAGED."""
    PACKAGED.mkdir(exist_ok=True)
    try:
        made = [_copied(_level())] if "--native" in sys.argv[1:] else [compile_to(PACKAGED, level) for level in LEVELS]
    except BuildError as error:
        sys.exit(
            f"octavo: the kernels for CPUs were not compiled: {error}. The engine tries again when it starts, "
            "and computes with PyTorch, more slowly, where it cannot"
        )
    sys.stdout.writelines(f"{path}\n" for path in made)


if __name__ == "__main__":
    main()
