"""`octavo-engine models`: the supported model families and their features."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict

from octavo_engine.model.configuration.supported_models import SupportedModel, supported_models

COLUMNS = ("architecture", "model_type", "gives", "feed-forward", "windows", "--quantization", "GGUF")


def run(*, as_json: bool = False) -> int:
    """Print a table of all families, or a JSON list of objects with the fields of SupportedModel."""
    if as_json:
        sys.stdout.write(json.dumps([asdict(model) for model in supported_models()], indent=2) + "\n")
        return 0
    rows = [COLUMNS, *table(supported_models())]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    for row in rows:
        sys.stdout.write("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() + "\n")
    return 0


def table(models: Iterable[SupportedModel]) -> list[tuple[str, ...]]:
    """Return a row of texts for each family, in the order of `COLUMNS`."""
    return [
        (
            model.architecture,
            model.model_type,
            model.gives,
            model.feed_forward,
            _yes(model.windows),
            " ".join(model.quantization) or "no",
            _yes(model.gguf),
        )
        for model in models
    ]


def _yes(value: bool) -> str:
    return "yes" if value else "no"
