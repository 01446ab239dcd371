"""Reads the header of a model, which may be in several GGUF files; the first one has its metadata."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from octavo_engine.errors import ModelLoadError
from octavo_engine.model.gguf.file import GGUFFile, GGUFTensor, read_gguf
from octavo_engine.model.gguf.part_names import parts_of

_COUNT, _NUMBER, _TENSORS = "split.count", "split.no", "split.tensors.count"


def read_model(path: Path) -> GGUFFile:
    """Return the metadata and the tensors of a model in one file or in several; `path` names one of them.

    ModelLoadError, with the names of files, if parts are missing or are not those of one model.
    """
    paths = parts_of(path)
    refuse_missing(paths)
    first = read_gguf(paths[0])
    count = _number(first, _COUNT, 1)
    if count in (0, 1) and len(paths) == 1:
        return first
    if count != len(paths):
        raise ModelLoadError(
            f"{paths[0]}: is one of {count} files of a model ({_COUNT}), and by its name one of {len(paths)}; give the "
            f"files the names that they had: NAME-00001-of-{count:05}.gguf and so on"
        )
    tensors: dict[str, GGUFTensor] = {}
    for number, each in enumerate(paths):
        part = first if number == 0 else read_gguf(each)
        _check_part(part, number, first)
        if twice := sorted(tensors.keys() & part.tensors.keys()):
            holder = tensors[twice[0]].path
            raise ModelLoadError(f"{each}: the tensor {twice[0]!r} is in {holder.name}, too; fetch both again")
        tensors |= part.tensors
    if len(tensors) != (total := _number(first, _TENSORS, len(tensors))):
        raise ModelLoadError(
            f"{paths[0]}: the {count} files of this model have {len(tensors)} tensors, and {_TENSORS} is {total}: not "
            "all of them are parts of the same model; fetch them again"
        )
    return replace(first, tensors=tensors)


def refuse_missing(paths: list[Path]) -> None:
    """Raise ModelLoadError, with their names, if some files of a model in several are missing."""
    missing = [each.name for each in paths if not each.exists()] if len(paths) > 1 else []
    if missing:
        names = ", ".join(missing[:5]) + (" and others" if len(missing) > 5 else "")
        folder = paths[0].parent
        raise ModelLoadError(
            f"{folder}: {len(missing)} of the {len(paths)} files of the model are missing: {names}; fetch "
            "them into the same folder"
        )


def _check_part(part: GGUFFile, number: int, first: GGUFFile) -> None:
    """Raise ModelLoadError unless `part` is the one of this number, from 0, of the model that `first` begins."""
    for key, expected in (
        (_NUMBER, number),
        (_COUNT, first.metadata.get(_COUNT)),
        (_TENSORS, first.metadata.get(_TENSORS)),
    ):
        if part.metadata.get(key) != expected:
            raise ModelLoadError(
                f"{part.path}: is not a part of the model in {first.path.name}: its {key} is "
                f"{part.metadata.get(key)!r} and should be {expected!r}; fetch it again"
            )


def _number(file: GGUFFile, key: str, default: int) -> int:
    value: Any = file.metadata.get(key, default)
    if type(value) is not int or not 0 <= value <= 1 << 20:
        raise ModelLoadError(f"{file.path}: {key} {str(value)[:80]!r} is not a number of files or tensors")
    return value
