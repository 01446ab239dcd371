"""prometheus and promtool: the machine's own, or Debian's, unpacked into the user's cache (nothing is installed)."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.cluster.layout import user_cache

PACKAGE = "prometheus"
NAMES = ("prometheus", "promtool")


def program(name: str) -> Path:
    """The path of `name`, one of NAMES; downloaded with apt-get if the machine does not have it."""
    if found := shutil.which(name):
        return Path(found)
    unpacked = user_cache() / "bin" / "prometheus-debian" / "usr" / "bin"
    if not (unpacked / name).is_file():
        _unpack(unpacked.parents[1])
    return unpacked / name


def _unpack(target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        folder = Path(scratch)
        folder.chmod(0o755)
        if _run(["apt-get", "download", "-qq", PACKAGE], folder):  # no package lists yet, or old ones
            _run(["apt-get", "update", "-qq"], folder)
            if wrong := _run(["apt-get", "download", "-qq", PACKAGE], folder):
                raise RuntimeError(f"{' and '.join(NAMES)} are needed: install the package {PACKAGE}; {wrong}")
        (archive,) = folder.glob("*.deb")
        subprocess.run(["dpkg-deb", "--extract", str(archive), str(folder / "root")], check=True)
        shutil.rmtree(target, ignore_errors=True)
        (folder / "root").rename(target)


def _run(command: list[str], folder: Path) -> str:
    """The error output of the command; empty if it succeeded."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return (done.stderr.strip() or str(done.returncode)) if done.returncode else ""
