"""Writes charts/octavo/README.md from the chart's values.yaml, whose comments follow helm-docs' conventions.

A comment that begins with `# --` describes the key below it; `make manifests` writes the page, `--check` compares it.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parents[1] / "charts" / "octavo"
README = CHART / "README.md"
_TYPES = {str: "string", bool: "bool", int: "int", list: "list", dict: "object"}


@dataclass(frozen=True)
class Value:
    """One described value: its path, its default, and its description."""

    path: tuple[str, ...]
    default: Any
    description: str

    @property
    def name(self) -> str:
        """The name as `--set` takes it."""
        return ".".join(self.path)


def values() -> Iterator[Value]:
    """Yield all described values of values.yaml, in its order."""
    text = (CHART / "values.yaml").read_text()
    defaults, path, comment = yaml.safe_load(text), list[str](), list[str]()
    for line in text.splitlines():
        if found := re.match(r" *# (-- )?(.*)", line):
            comment = [found[2]] if found[1] else [*comment, found[2]] if comment else []
        elif found := re.match(r"( *)([A-Za-z]+):", line):
            path[len(found[1]) // 2 :] = [found[2]]
            if comment:
                default = defaults
                for step in path:
                    default = default[step]
                yield Value(tuple(path), default, " ".join(comment))
            comment = []
        else:
            comment = []


def page() -> str:
    """Return the README."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    lines = [
        "<!-- Made by `make manifests` from values.yaml; edit the comments there. -->\n",
        f"# {chart['name']}\n",
        f"Version {chart['version']}, of Octavo {chart['appVersion']}\n",
        f"{chart['description']}\n",
        "How to install, upgrade and remove it: [docs/how-to/install.md](../../docs/how-to/install.md).\n",
        "## Requirements\n",
        f"Kubernetes: `{chart['kubeVersion']}`\n",
        "## Values\n",
        "| Key | Type | Default | Description |",
        "|-----|------|---------|-------------|",
    ]
    for value in values():
        kind = _TYPES[type(value.default)]
        text = value.description.replace("|", "\\|")
        lines.append(f"| {value.name} | {kind} | `{json.dumps(value.default)}` | {text} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write the page; with --check the exit code says whether it is up to date."""
    if "--check" in sys.argv[1:]:
        return int(README.read_text() != page())
    README.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
