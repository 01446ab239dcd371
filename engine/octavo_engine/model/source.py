"""Where a model's files are: a Hugging Face id, a directory, a .gguf file, or the packaged demo model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Progress = Callable[[str, float, str], None]
"""Called with phase (`pulling`, `loading`), ratio 0 to 1 within the phase, and a detail such as `1.2 of 16.1 GiB`."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model that lies on this machine: either a directory in Hugging Face layout or one .gguf file."""

    name: str
    """As the user wrote it; the default name in the API."""
    directory: Path | None = None
    gguf: Path | None = None
