"""YAML by libyaml, which reads and writes in a tenth of the time of PyYAML's own code: CRDs are long."""

from __future__ import annotations

from typing import Any

import yaml


def load_all(text: str) -> list[Any]:
    """The documents of `text`."""
    return list(yaml.load_all(text, yaml.CSafeLoader))


def load(text: str) -> Any:
    """The only document of `text`."""
    return yaml.load(text, yaml.CSafeLoader)


def dump(document: Any) -> str:
    """The document as YAML, as `yaml.safe_dump` writes it."""
    return yaml.dump(document, Dumper=yaml.CSafeDumper)
