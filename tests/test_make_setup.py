"""`make setup` as a new user sees it, with programs in place of python and uv that print the same."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent
UV = """#!/bin/sh
case " $* " in *" --quiet "*) ;; *) echo "Installed 150 packages" >&2;; esac
"""
PYTHON = """#!/bin/sh
case "$*" in *kernels.cpu.build*) echo built/kernels-avx2.so;; esac
"""


def test_setup_says_what_each_step_does_and_nothing_else_in_a_pipe(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "engine" / "playground").mkdir(parents=True)
    index = tmp_path / "engine" / "octavo_engine" / "server" / "playground_files" / "index.html"
    programs = tmp_path / ".venv" / "bin"
    for path, text in ((index, ""), (programs / "uv", UV), (programs / "python", PYTHON)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    # `make test` tells its children that they are within a make, which then names its folder.
    outside = {name: value for name, value in os.environ.items() if name not in ("MAKELEVEL", "MAKEFLAGS", "MFLAGS")}
    made = subprocess.run(
        ["make", "setup"], cwd=tmp_path, env=outside, capture_output=True, text=True, check=True, timeout=300
    )
    first, *steps = (made.stdout + made.stderr).splitlines()
    assert first.startswith("octavo: setting up .venv") and "a minute or two" in first
    assert [line[:15] for line in steps] == [f"octavo: {number} of 3:" for number in (1, 2, 3)]
