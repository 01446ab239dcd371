"""Starts of octavo-engine that fail, and their exit codes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.free_port import free_port

ENGINE = Path(sys.executable).parent / "octavo-engine"


def serve(*arguments: str, env: dict[str, str] | None = None) -> tuple[int, str]:
    """Run `octavo-engine serve` until it ends by itself."""
    command = [str(ENGINE), "serve", *arguments, "--device=cpu", "--host=127.0.0.1"]
    command += [] if any(a.startswith("--port") for a in arguments) else [f"--port={free_port()}"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=400, env={**os.environ, **(env or {})}, check=False
    )
    return done.returncode, done.stdout + done.stderr


def assert_fails(arguments: list[str], code: int, *words: str, env: dict[str, str] | None = None) -> None:
    """It ends with `code` and one line, which holds all `words`."""
    found, output = serve(*arguments, env=env)
    assert found == code, output
    assert "Traceback" not in output, output
    said = [line for line in output.splitlines() if line.startswith("octavo-engine")]
    assert len(said) == 1, f"expected one line of the program's own in:\n{output}"
    assert all(word.lower() in said[0].lower() for word in words), f"expected {words} in: {said[0]}"
