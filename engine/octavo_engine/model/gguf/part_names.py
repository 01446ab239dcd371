"""The names of the files of a model that llama-gguf-split has cut: NAME-00001-of-00003.gguf and so on."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

_PART = re.compile(r"(.*-)(\d{5})(-of-(\d{5})\.gguf)", re.DOTALL)


def part_names(name: str) -> list[str]:
    """Return the names of all parts of the model of which a file of this name is one; the name alone if it is none."""
    part = _PART.fullmatch(name)
    if part is None or not 1 <= int(part[2]) <= int(part[4]):
        return [name]
    return [f"{part[1]}{number:05}{part[3]}" for number in range(1, int(part[4]) + 1)]


def parts_of(path: Path) -> list[Path]:
    """Return the files of the model at `path`, which may be a link to one of them; `path` alone if it is one file."""
    path = next((each for each in links(path) if len(part_names(each.name)) > 1), path)
    return [path.with_name(name) for name in part_names(path.name)]


def links(path: Path) -> list[Path]:
    """Return `path`, what it links to, what that links to, and so on: in the hub's cache each file is a link."""
    found = [path]
    while found[-1].is_symlink() and found[-1].exists():
        found.append(found[-1].parent / found[-1].readlink())
    return found


def first_parts(names: Iterable[str]) -> list[str]:
    """Return a name for each model among the files of these names, the first part's of one in parts, in order."""
    return sorted({part_names(name)[0] for name in names})
