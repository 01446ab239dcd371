"""The interface between the loader and the kinds of checkpoint files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from octavo_engine.model.checkpoint.progress import Progress
from octavo_engine.model.checkpoint.tensors import CheckpointTensor
from octavo_engine.sizes import format_size


class CheckpointSource(Protocol):
    """Files that hold a model's tensors. ModelLoadError names the file and the tensor that cannot be read."""

    where: Path
    """The file or the folder, for messages."""

    def shapes(self, expected: Mapping[str, CheckpointTensor]) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor in the files, from headers alone, by the names of `expected` where it has
        them."""

    def load(self, tensors: Mapping[str, CheckpointTensor], progress: Progress) -> None:
        """Fill the pieces of all `tensors` that the files have, and read nothing else."""


@dataclass(slots=True)
class Meter:
    """Counts the bytes of the checkpoint that were read, and reports them."""

    total: int
    progress: Progress
    done: int = 0

    def add(self, num_bytes: int) -> None:
        """Count `num_bytes` more, and report the sum."""
        self.done += num_bytes
        self.progress(
            "loading", self.done / max(1, self.total), f"{format_size(self.done)} of {format_size(self.total)}"
        )
