"""Loads tensors from safetensors files in Hugging Face layout."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from octavo_engine.errors import ModelLoadError
from octavo_engine.model.checkpoint.fused_experts import StoredTensor, stored_tensors
from octavo_engine.model.checkpoint.names import LLAMA_NAMES, SAME_NAMES, StoredNames, TensorNames
from octavo_engine.model.checkpoint.progress import Progress
from octavo_engine.model.checkpoint.safetensors_file import SafetensorsHeader, read_headers
from octavo_engine.model.checkpoint.source import Meter
from octavo_engine.model.checkpoint.tensors import FLOATS, CheckpointTensor, Piece


class SafetensorsSource:
    """The safetensors files of one folder as a checkpoint source."""

    def __init__(self, directory: Path, stored: StoredNames = SAME_NAMES, names: TensorNames = LLAMA_NAMES) -> None:
        """`stored`: how the files call the tensors; ModelLoadError if they store one of them under two names."""
        self.where, self._names = directory, names
        self._headers = read_headers(directory)
        self._own = _own_names(directory, self._headers, stored)

    def shapes(self, expected: Mapping[str, CheckpointTensor]) -> dict[str, tuple[int, ...]]:
        """Return the shapes of all tensors that are not ignored."""
        return {name: tensor.shape for found in self._found(expected) for name, tensor in found.items()}

    def _found(self, expected: Mapping[str, CheckpointTensor]) -> list[dict[str, StoredTensor]]:
        """Return each file's tensors by the names of `expected`; ModelLoadError if one is stored twice."""
        files, stored_as = list[dict[str, StoredTensor]](), dict[str, str]()
        for header, own in zip(self._headers, self._own, strict=True):
            files.append({})
            for stored, name in own.items():
                for each, tensor in stored_tensors(stored, name, header.tensors[stored], expected, self._names):
                    if (other := stored_as.setdefault(each, stored)) != stored:
                        raise _stored_twice(self.where, other, stored)
                    files[-1][each] = tensor
        return files

    def load(self, tensors: Mapping[str, CheckpointTensor], progress: Progress) -> None:
        """Fill the tensors file by file; those that are `late` in a second round."""
        files = list(zip(self._headers, self._found(tensors), strict=True))
        meter = Meter(sum(tensor.num_bytes for _, found in files for tensor in found.values()), progress)
        meter.add(0)
        for late in (False, True):
            for header, found in files:
                wanted = [(tensors[name], stored) for name, stored in found.items() if tensors[name].late == late]
                if wanted:
                    _load_file(header, wanted, meter)


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
                raise _stored_twice(directory, other, stored)
    return files


def _stored_twice(directory: Path, one: str, other: str) -> ModelLoadError:
    return ModelLoadError(f"{directory}: {one} and {other} are the same tensor; keep one of the two")


def _load_file(header: SafetensorsHeader, tensors: list[tuple[CheckpointTensor, StoredTensor]], meter: Meter) -> None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(header.path, framework="pt", device="cpu") as file:
            for tensor, stored in tensors:
                _load_tensor(file, header, tensor, stored)
                meter.add(stored.num_bytes)
    except (SafetensorError, OSError) as error:
        raise ModelLoadError(f"{header.path}: cannot be read: {error}") from None


def _load_tensor(file: Any, header: SafetensorsHeader, tensor: CheckpointTensor, stored: StoredTensor) -> None:
    dtype = header.tensors[stored.name].dtype
    if tensor.pieces and dtype not in tensor.types:
        wanted = "floating point" if tensor.types[: len(FLOATS)] == FLOATS else tensor.types[0]
        raise ModelLoadError(f"{header.path}: tensor {stored.name!r} is {dtype}, not {wanted}")
    for piece in tensor.pieces:
        try:
            piece.put(_values(file, tensor, piece, stored))
        except ValueError as error:
            raise ModelLoadError(f"{header.path}: tensor {stored.name!r} {error}") from None


def _values(file: Any, tensor: CheckpointTensor, piece: Piece, stored: StoredTensor) -> Tensor:
    """Return the piece's part of a tensor; nothing else of the file is read."""
    shape, part = tensor.shape, piece.part
    complete = shape is None or all(cut == slice(0, size) for cut, size in zip(part, shape, strict=False))
    values: Tensor
    if not complete and not tensor.squeezed:
        values = file.get_slice(stored.name)[stored.index(part)]
        return values
    values = file.get_tensor(stored.name) if stored.whole else file.get_slice(stored.name)[stored.index(())]
    values = values if shape is None else values.view(shape)
    return values if complete else values[part]
