"""The golden cases: what an LLMService renders to, byte for byte.

A case is a folder of golden/ with `expected.yaml` and either its own `input.yaml` or the name of a sample. After a
wanted change, `python -m tests.operator.golden` writes all expectations anew; the diff is then to be read as what every
user's pods will go through.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "manifests" / "samples"
GOLDEN = Path(__file__).parent / "golden"
IMAGE = "registry.example/octavo-engine:1.2.3"


def inputs() -> dict[str, Path]:
    """The input file of each case: every sample, and the cases of their own."""
    found = {path.stem: path for path in SAMPLES.glob("*.yaml")}
    found.update({path.parent.name: path for path in GOLDEN.glob("*/input.yaml")})
    return dict(sorted(found.items()))


def rendered(path: Path) -> str:
    """What the command prints for the file."""
    command = [sys.executable, "-m", "octavo_operator.cli", "render", str(path), "--engine-image", IMAGE]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    for case, path in inputs().items():
        (GOLDEN / case).mkdir(exist_ok=True)
        (GOLDEN / case / "expected.yaml").write_text(rendered(path))
        print(f"wrote {case}")
