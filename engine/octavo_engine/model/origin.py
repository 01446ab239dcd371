"""The downloaded model's commit on the hub, and the size of its weights on disk."""

from __future__ import annotations

import re

from octavo_engine.model.checkpoint.safetensors_file import weight_files
from octavo_engine.model.gguf.part_names import links, parts_of
from octavo_engine.model.gguf.parts import refuse_missing
from octavo_engine.model.source import ModelFiles

_COMMIT = re.compile(r"[0-9a-f]{40}")


def commit_of(files: ModelFiles) -> str | None:
    """Return the commit of these files, None if not known; the hub's cache has each one in `snapshots/<commit>`."""
    if files.commit is not None:
        return files.commit
    # A file in the cache is a link to its content, so only a folder around it names the commit; perhaps the second one.
    places = [files.directory] if files.directory else [each.parent for each in links(files.gguf)] if files.gguf else []
    for place in places:
        for folder in (place.resolve(), place.resolve().parent):
            if folder.parent.name == "snapshots" and _COMMIT.fullmatch(folder.name):
                return folder.name
    return None


def size_of(files: ModelFiles) -> int:
    """Return the bytes of the weight files; ModelLoadError if some are missing."""
    if files.gguf is not None:
        parts = parts_of(files.gguf)
        refuse_missing(parts)
        return sum(path.stat().st_size for path in parts)
    return sum(path.stat().st_size for path in weight_files(files.directory)) if files.directory else 0
