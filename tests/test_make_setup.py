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


def made(target: str, folder: Path) -> list[str]:
    """The lines that a first `make` of this target prints in a pipe."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    (folder / "engine" / "playground").mkdir(parents=True)
    index = folder / "engine" / "octavo_engine" / "server" / "playground_files" / "index.html"
    programs = folder / ".venv" / "bin"
    for path, text in ((index, ""), (programs / "uv", UV), (programs / "python", PYTHON)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    # `make test` tells its children that they are within a make, which then names its folder.
    outside = {name: value for name, value in os.environ.items() if name not in ("MAKELEVEL", "MAKEFLAGS", "MFLAGS")}
    done = subprocess.run(
        ["make", target], cwd=folder, env=outside, capture_output=True, text=True, check=True, timeout=300
    )
    return (done.stdout + done.stderr).splitlines()


def test_setup_says_what_each_step_does_and_nothing_else_in_a_pipe(tmp_path: Path) -> None:
    first, *steps, ready, more = made("setup", tmp_path)
    assert first.startswith("octavo: setting up .venv") and "a minute or two" in first
    assert [line[:15] for line in steps] == [f"octavo: {number} of 3:" for number in (1, 2, 3)]
    assert "Next: make demo" in ready and "octavo-engine doctor" in more


def test_a_target_that_sets_up_first_goes_on_without_saying_what_is_next(tmp_path: Path) -> None:
    assert made("serve", tmp_path)[-1].startswith("octavo: 3 of 3:")
