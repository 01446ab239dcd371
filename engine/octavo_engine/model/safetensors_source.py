"""Loads tensors from safetensors files in Hugging Face layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from octavo_engine.errors import ModelLoadError
from octavo_engine.model.checkpoint import FLOATS, CheckpointTensor, Piece
from octavo_engine.model.checkpoint_source import Meter
from octavo_engine.model.names import SAME_NAMES, StoredNames
from octavo_engine.model.progress import Progress
from octavo_engine.model.safetensors_file import SafetensorsHeader, read_headers


class SafetensorsSource:
    """The safetensors files of one folder as a checkpoint source."""

    def __init__(self, directory: Path, names: StoredNames = SAME_NAMES) -> None:
        """`names`: how the files call the tensors; ModelLoadError if they store one of them under two names."""
        self.where = directory
        self._headers = read_headers(directory)
        self._own = _own_names(directory, self._headers, names)

    def shapes(self, expected: Mapping[str, CheckpointTensor]) -> dict[str, tuple[int, ...]]:  # noqa: ARG002
        """Return the shapes of all tensors that are not ignored."""
        return {
            name: header.tensors[stored].shape
            for header, own in zip(self._headers, self._own, strict=True)
            for stored, name in own.items()
        }

    def load(self, tensors: Mapping[str, CheckpointTensor], progress: Progress) -> None:
        """Fill the tensors file by file; those that are `late` in a second round."""
        files = list(zip(self._headers, self._own, strict=True))
        meter = Meter(sum(header.tensors[stored].num_bytes for header, own in files for stored in own), progress)
        meter.add(0)
        for late in (False, True):
            for header, own in files:
                wanted = {stored: tensors[name] for stored, name in own.items() if tensors[name].late == late}
                if wanted:
                    _load_file(header, [replace(tensor, name=stored) for stored, tensor in wanted.items()], meter)


def _own_names(
    directory: Path, headers: tuple[SafetensorsHeader, ...], names: StoredNames
) -> tuple[dict[str, str], ...]:
    """Return for each file the tensors to read, by stored name, each with its name in `TensorNames`.

    Of two that have the same name there, the one that is stored under it is read (`cls.predictions.decoder.bias` of
    BERT beside `cls.predictions.bias`), as in transformers. Empty tensors are not read: models without shared experts
    may have them.
    """
    files = tuple(
        {
            stored: name
            for stored, tensor in header.tensors.items()
            if (name := names.own(stored)) is not None and tensor.num_bytes
        }
        for header in headers
    )
    exact = {name for own in files for stored, name in own.items() if stored == name}
    files = tuple(
        {stored: name for stored, name in own.items() if stored == name or name not in exact} for own in files
    )
    renamed: dict[str, str] = {}
    for own in files:
        for stored, name in own.items():
            if (other := renamed.setdefault(name, stored)) != stored:
                raise ModelLoadError(f"{directory}: {other} and {stored} are the same tensor; keep one of the two")
    return files


def _load_file(header: SafetensorsHeader, tensors: list[CheckpointTensor], meter: Meter) -> None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(header.path, framework="pt", device="cpu") as file:
            for tensor in tensors:
                _load_tensor(file, header, tensor)
                meter.add(header.tensors[tensor.name].num_bytes)
    except (SafetensorError, OSError) as error:
        raise ModelLoadError(f"{header.path}: cannot be read: {error}") from None


def _load_tensor(file: Any, header: SafetensorsHeader, tensor: CheckpointTensor) -> None:
    stored = header.tensors[tensor.name].dtype
    if tensor.pieces and stored not in tensor.types:
        wanted = "floating point" if tensor.types[: len(FLOATS)] == FLOATS else tensor.types[0]
        raise ModelLoadError(f"{header.path}: tensor {tensor.name!r} is {stored}, not {wanted}")
    for piece in tensor.pieces:
        try:
            piece.put(_values(file, tensor, piece))
        except ValueError as error:
            raise ModelLoadError(f"{header.path}: tensor {tensor.name!r} {error}") from None


def _values(file: Any, tensor: CheckpointTensor, piece: Piece) -> Tensor:
    """Return the piece's part of a tensor; nothing else of the file is read."""
    if tensor.shape is None:
        return cast("Tensor", file.get_tensor(tensor.name))
    shape, part = tensor.shape, piece.part
    complete = all(cut == slice(0, size) for cut, size in zip(part, shape, strict=False))
    values: Tensor
    if complete or tensor.squeezed:
        values = file.get_tensor(tensor.name)
        values = values if tensor.shape is None else values.view(shape)
        return values if complete else values[part]
    values = file.get_slice(tensor.name)[part]
    return values
