"""`make frameworks`: programs that use Octavo through other people's frameworks, against a real server with SmolLM2.

Each framework is a file here, which gets the server's address; the programs of examples/frameworks run too. They have
their own environments, .cache/frameworks and node_modules, from requirements.txt and package-lock.json: they
have many dependencies that Octavo does not, so they are not a part of `make test`. The exit code is 0 only if
all succeeded.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.api.real_server import RealServer

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples" / "frameworks"
VENV = HERE.parents[1] / ".cache" / "frameworks"


def programs() -> Iterator[tuple[str, list[str]]]:
    """Each framework's name and the command that uses it."""
    for file in sorted(HERE.glob("with_*")):
        program = str(VENV / "bin" / "python") if file.suffix == ".py" else "node"
        yield file.stem.removeprefix("with_"), [program, str(file)]
    for file in sorted(EXAMPLES.glob("*.py")):
        yield f"{file.parent.name}/{file.name}", [str(VENV / "bin" / "python"), str(file)]


def install() -> None:
    """Both environments; free where nothing has changed."""
    if not (VENV / "bin" / "python").exists():
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    uv = [str(Path(sys.executable).with_name("uv")), "pip", "install", "--quiet"]
    subprocess.run(
        [*uv, "--python", str(VENV / "bin" / "python"), "--requirements", HERE / "requirements.txt"], check=True
    )
    subprocess.run(["npm", "ci", "--silent"], check=True, cwd=HERE)


def run(server: RealServer, name: str, command: Sequence[str]) -> bool:
    """Run the program; print the result and return True if it succeeded."""
    began = time.monotonic()
    environment = {**os.environ, "OPENAI_BASE_URL": f"{server.url}/v1"}
    good = subprocess.run([*command, server.url], check=False, timeout=3600, env=environment).returncode == 0
    print(f"{name}: {'good' if good else 'FAILED'} ({time.monotonic() - began:.0f} s)", flush=True)
    return good


def main() -> int:
    """The exit code."""
    install()
    with tempfile.TemporaryDirectory() as folder:
        server = RealServer(Path(folder) / "log")
        try:
            server.wait_until(server.is_ready)
            results = [run(server, name, command) for name, command in programs()]
            return 0 if all(results) else 1
        finally:
            server.end()


if __name__ == "__main__":
    sys.exit(main())
