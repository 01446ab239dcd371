"""`make fuzz-api`: schemathesis makes requests of /openapi.json for MINUTES, against a real server with SmolLM2.

It has its own environment, .cache/schemathesis. The exit code is 0 only if every request got an answer or an error of
the API, none of them 500, and the server is still well.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.api.real_server import RealServer

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
VENV = ROOT / ".cache" / "schemathesis"
_SMALL = ("--max-model-len=128", "--num-kv-blocks=256", "--max-num-seqs=16")
"""Whatever length a request asks for, its answer is short."""


def install() -> None:
    """Make the environment; free where nothing has changed."""
    python = VENV / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    uv = [str(Path(sys.executable).with_name("uv")), "pip", "install", "--quiet", "--python", str(python)]
    subprocess.run([*uv, "--requirements", HERE / "requirements.txt"], check=True)


def fuzz(url: str, seconds: float, folder: str) -> int:
    """Run schemathesis; return its exit code."""
    command = [str(VENV / "bin" / "schemathesis"), "run", f"{url}/openapi.json", f"--max-time={seconds:.0f}"]
    command += ["--phases=examples,coverage,fuzzing", "--checks=an_answer_or_an_error_of_the_api"]
    # One worker: Python 3.11's ast fails in several threads ("AST constructor recursion depth mismatch").
    command += ["--workers=1", "--continue-on-failure", "--max-examples=1000000", "--request-timeout=120", "--no-color"]
    hooks = {"SCHEMATHESIS_HOOKS": "tests.openapi_fuzz.checks", "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, check=False, cwd=folder, env={**os.environ, **hooks}).returncode


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="tests.openapi_fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20)
    args = parser.parse_args()
    install()
    with tempfile.TemporaryDirectory() as folder:
        server = RealServer(Path(folder) / "log", "smollm2", *_SMALL)
        try:
            server.wait_until(server.is_ready)
            failed = fuzz(server.url, args.minutes * 60, folder)
            ended = server.end()
            well = ended == 0 and "Traceback" not in server.log.read_text()
            if not well:
                print(f"the server ended with {ended}; the end of its log:\n{server.log.read_text()[-4000:]}")
        finally:
            server.process.kill()
            server.process.wait()
    return 0 if well and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
