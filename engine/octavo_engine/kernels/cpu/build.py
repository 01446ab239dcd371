"""Compiles the C files of this folder for an instruction set, once; the compiled file is kept.

    python -m octavo_engine.kernels.cpu.build [--native]

compiles for all of them into the folder `built`, as an image's build does; `make setup` does so for this machine's
alone, by a copy of what the user's cache has, which all checkouts share. Otherwise it happens at the first start (5 to
10 s on an idle machine), into that cache. Nothing of torch is compiled in: the functions take pointers and numbers.
"""

from __future__ import annotations

import hashlib
import logging
import os
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
"""The folder of kernels that were compiled beforehand: not among the modules, or tools that walk the package would take
it for one."""
_COMPILER = "gcc"
_TIMEOUT = 600.0
"""Seconds: on two cores that ten others use it took two minutes."""
_OPTIONS = ("-O3", "-std=gnu11", "-fno-math-errno", "-fopenmp", "-shared", "-fPIC")
LEVELS = {
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
}
"""Instruction sets, the best first: the flags of `cpu_flags` that each needs, and the compiler's options for it."""


class BuildError(Exception):
    """There is no compiler, or it failed; the message says which."""


def built_library() -> Path:
    """The compiled kernels for this machine, compiled now if they are not there yet; BuildError if that fails."""
    return library_for(_level())


def library_for(level: str) -> Path:
    """The compiled kernels for the instruction set `level` of LEVELS; otherwise as `built_library`."""
    packaged = PACKAGED / _file_name(level)
    return packaged if packaged.exists() else _kept(level)


def _kept(level: str) -> Path:
    """The kernels in the user's cache, compiled now if they are not there yet; elsewhere if it cannot keep them."""
    folder = _cache()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if reason := _untrusted(folder):
            log.warning("%s is not used: %s; make it your own with chmod 700, or set XDG_CACHE_HOME", folder, reason)
            folder = Path(tempfile.mkdtemp(prefix="octavo-kernels-"))
    except OSError:  # a read-only file system: compiled again at the next start
        folder = Path(tempfile.mkdtemp(prefix="octavo-kernels-"))
    found = folder / _file_name(level)
    if found.exists() and not _untrusted(found):
        return found
    log.info("compiling the kernels for this CPU, once: 5 to 10 s on an idle machine")
    return compile_to(folder, level)


def _untrusted(path: Path) -> str:
    """Return why another user could have written what is at `path`; empty where only this one and root could."""
    found = path.stat()
    if found.st_uid not in {os.geteuid(), 0}:
        return f"it belongs to user {found.st_uid}"
    return "others may write to it" if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else ""


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
    """The best of LEVELS that this machine has; BuildError if it has none."""
    flags = cpu_flags()
    for level, (needed, _) in LEVELS.items():
        if flags.issuperset(needed):
            return level
    raise BuildError("it has no AVX2")


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "octavo" / "kernels"


def _copied(level: str) -> Path:
    """The kernels in PACKAGED, where the pods of a development cluster find them, by a copy of the user's cache's."""
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
