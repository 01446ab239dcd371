"""Reads rows of the tensors of a GGUF file, as stored or dequantized.

Files are read, not mapped into memory: a mapped file that another program cuts short ends the process with SIGBUS.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from octavo_engine.errors import ModelLoadError
from octavo_engine.model.gguf.file import GGUFTensor, unreadable
from octavo_engine.model.model_file import open_file

if TYPE_CHECKING:  # imported where it is used: the HTTP process reads config.json's values of a file without it
    import numpy as np

_Bytes: TypeAlias = "np.ndarray[Any, np.dtype[np.uint8]]"
_PIECE_ELEMENTS = 1 << 17
"""The elements that are dequantized at once: enough to make few calls, and so few that malloc keeps the memory of each
step for the next one. That of 1 << 20 elements goes back to the kernel again and again: SmolLM2 had 220,000 page faults
instead of 9,000, and took a quarter more CPU time."""


class TensorFile:
    """A GGUF file that is open; threads may read it at the same time."""

    def __init__(self, path: Path) -> None:
        """Open the file; ModelLoadError if it cannot be, as it may have been removed since its header was read."""
        self._path = path
        try:
            self._file = open_file(path)
        except OSError as error:
            raise unreadable(path, error) from None

    def read(self, tensor: GGUFTensor, begin: int, end: int) -> _Bytes:
        """Return the bytes [begin, end) of a tensor, uint8 [end - begin]; ModelLoadError if the file ends before."""
        import numpy as np

        values = np.empty(end - begin, np.uint8)
        self._fill(values.data, tensor, begin)
        return values

    def read_rows(self, tensor: GGUFTensor, numbers: np.ndarray[Any, Any]) -> _Bytes:
        """Return the rows of a matrix with these numbers, in their order, uint8 [rows, bytes]; errors as of `read`."""
        import numpy as np

        size = tensor.num_bytes // tensor.shape[0]
        values = np.empty((len(numbers), size), np.uint8)
        # Consecutive rows are read together.
        starts = [0, *(np.flatnonzero(np.diff(numbers) != 1) + 1).tolist(), len(numbers)]
        for first, last in pairwise(starts):
            self._fill(values[first:last].reshape(-1).data, tensor, int(numbers[first]) * size)
        return values

    def _fill(self, memory: memoryview, tensor: GGUFTensor, begin: int) -> None:
        offset = tensor.start + begin
        while memory:
            try:
                count = os.preadv(self._file.fileno(), [memory], offset)
            except OSError as error:
                raise unreadable(self._path, error) from None
            if not count:
                raise ModelLoadError(
                    f"{self._path}: was cut short while it was read: tensor {tensor.name!r} goes on at byte {offset}; "
                    "fetch the file again"
                )
            memory, offset = memory[count:], offset + count


def row_pieces(tensor: GGUFTensor, begin: int = 0, end: int | None = None) -> Iterator[tuple[int, int]]:
    """Yield ranges of rows, of bounded size each, that together are [begin, end); a vector is one row."""
    rows = _num_rows(tensor)
    end = rows if end is None else end
    step = max(1, _PIECE_ELEMENTS * rows // tensor.num_elements)
    for first in range(begin, end, step):
        yield first, min(end, first + step)


def _num_rows(tensor: GGUFTensor) -> int:
    return tensor.shape[0] if len(tensor.shape) > 1 else 1


def row_bytes(file: TensorFile, tensor: GGUFTensor, first: int, last: int) -> _Bytes:
    """Return rows [first, last) of `tensor` in stored types, uint8 [last - first, bytes]; a vector is one row.

    ModelLoadError if the file cannot be read, also in `dequantize_rows`.
    """
    rows, order = _num_rows(tensor), tensor.restored.rows
    if order is not None and rows > 1:
        return file.read_rows(tensor, order[first:last])
    size = tensor.num_bytes // rows
    return file.read(tensor, first * size, last * size).reshape(last - first, size)


def dequantize_rows(file: TensorFile, tensor: GGUFTensor, first: int, last: int) -> np.ndarray[Any, Any]:
    """Return rows [first, last) of `tensor` as float32 [last - first, ...], with the checkpoint's values and order.

    A vector is one row.
    """
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    raw = row_bytes(file, tensor, first, last)
    try:
        # One long row: the package would otherwise go through the rows in groups of 16, many times slower.
        values = dequantize(raw.reshape(1, -1), GGMLQuantizationType[tensor.type_name])
    except NotImplementedError:
        raise ModelLoadError(f"tensor {tensor.name!r}: elements of type {tensor.type_name} are not supported") from None
    shape = (last - first, *tensor.shape[1:]) if len(tensor.shape) > 1 else tensor.shape
    result: np.ndarray[Any, Any] = values.reshape(shape)
    restored, order = tensor.restored, tensor.restored.rows
    if order is not None and len(tensor.shape) == 1:
        result = result[order]
    if restored.columns is not None:
        result = result[:, restored.columns]
    if restored.values is not None:
        result = restored.values(result)
    return result if result.flags.writeable else result.copy()
