"""The golden cases: what an LLMService renders to, byte for byte.

A case is a folder of golden/ with `expected.yaml` and either its own `input.yaml` or the name of a sample. After an
intended change `python -m tests.operator.golden` writes all expectations again; their diff shows what changes in every
user's objects.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from octavo_operator.api.files import inspect
from octavo_operator.api.manifest import dump
from octavo_operator.api.resource import LLMService
from octavo_operator.render import RenderConfig, render
from tests.quick_yaml import load_all

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "manifests" / "samples"
GOLDEN = Path(__file__).parent / "golden"
IMAGE = "registry.example/octavo-engine:1.2.3"


def inputs() -> dict[str, Path]:
    """The input file of each case: every sample, and the inputs of cases that have their own."""
    found = {path.stem: path for path in SAMPLES.glob("*.yaml")}
    found.update({path.parent.name: path for path in GOLDEN.glob("*/input.yaml")})
    return dict(sorted(found.items()))


def rendered(path: Path) -> str:
    """Render the file's LLMService, even if a field that is not supported yet would stop the command."""
    return dump(*render(llmservice(path), RenderConfig(IMAGE)))


def llmservice(path: Path) -> LLMService:
    """The LLMService in the file."""
    (found,) = inspect(path).services
    return found


def container(case: str, name: str = "engine", field: str = "containers") -> dict[str, Any]:
    """A container of the case's pods."""
    pod = deployment(case)["spec"]["template"]["spec"]
    (found,) = [container for container in pod[field] if container["name"] == name]
    return dict(found)


def fetched() -> list[str]:
    """The cases whose model is downloaded."""
    return [case for case in inputs() if any("--check-memory" in c.get("args", []) for c in init_containers(case))]


def init_containers(case: str) -> list[dict[str, Any]]:
    """The init containers of the case."""
    return list(deployment(case)["spec"]["template"]["spec"].get("initContainers", []))


def deployment(case: str) -> dict[str, Any]:
    """The Deployment that the case is expected to render to."""
    manifests = load_all((GOLDEN / case / "expected.yaml").read_text())
    (found,) = [manifest for manifest in manifests if manifest["kind"] == "Deployment"]
    return dict(found)


if __name__ == "__main__":
    for case, path in inputs().items():
        (GOLDEN / case).mkdir(exist_ok=True)
        (GOLDEN / case / "expected.yaml").write_text(rendered(path))
        print(f"wrote {case}")
