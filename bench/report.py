"""Writes a benchmark's figures to bench/results/<date>-<name>, as JSON for programs and a Markdown page for people."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_RESULTS = Path(__file__).parent / "results"


def save(name: str, result: dict[str, Any], page: Callable[[str], str]) -> Path:
    """Write both files and print the page, which is made from its title; returns their path without a suffix."""
    _RESULTS.mkdir(exist_ok=True)
    stem = _RESULTS / f"{datetime.now(UTC):%Y-%m-%d}-{name}"
    text = page(stem.name)
    stem.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    stem.with_suffix(".md").write_text(text)
    print(text)
    return stem
