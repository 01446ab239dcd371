"""Loads tensors from a GGUF file, dequantized part by part on a few threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from octavo_engine.errors import ModelLoadError
from octavo_engine.model.checkpoint.progress import Progress
from octavo_engine.model.checkpoint.source import Meter
from octavo_engine.model.checkpoint.tensors import FLOATS, CheckpointTensor, Piece
from octavo_engine.model.fields import Fields
from octavo_engine.model.gguf.architectures import gguf_architecture
from octavo_engine.model.gguf.file import GGUFTensor
from octavo_engine.model.gguf.header import Header
from octavo_engine.model.gguf.names import named_tensors
from octavo_engine.model.gguf.parts import read_model
from octavo_engine.model.gguf.restored import UNCHANGED, Restored
from octavo_engine.model.gguf.rows import TensorFile, dequantize_rows, row_bytes, row_pieces
from octavo_engine.model.spec import ModelSpec

_THREADS = 4


class GGUFSource:
    """A GGUF model as a checkpoint source; the `gguf` package maps its tensors' names to Hugging Face's."""

    def __init__(self, path: Path, spec: ModelSpec) -> None:
        self.where, self._spec = path, spec
        self._file = read_model(path)
        header = Header(self._file, Fields(str(path), self._file.metadata))
        architecture = gguf_architecture(header)
        self._restored = architecture.restored(spec)
        self._made, self._made_of = architecture.made(header), architecture.made_of

    def shapes(self, expected: Mapping[str, CheckpointTensor]) -> dict[str, tuple[int, ...]]:
        """Return the tensors' shapes by Hugging Face's names."""
        made = {name: values.shape for name, values in self._made.items()}
        return {name: tensor.shape for name, tensor in self._named(expected).items()} | made

    def _named(self, expected: Mapping[str, CheckpointTensor]) -> dict[str, GGUFTensor]:
        def restored(name: str) -> Restored:
            return next((each for ending, each in self._restored.items() if name.endswith(ending)), UNCHANGED)

        named = named_tensors(self._file, self._spec.num_layers, expected, restored)
        return {name: tensor for name, tensor in named.items() if tensor.name not in self._made_of}

    def load(self, tensors: Mapping[str, CheckpointTensor], progress: Progress) -> None:
        """Fill the tensors in parts of bounded size, each directly into its place; numpy releases the GIL."""
        stored_tensors = {name: tensor for name, tensor in self._named(tensors).items() if name in tensors}
        meter = Meter(
            sum(tensor.num_bytes for name, tensor in stored_tensors.items() if tensors[name].pieces), progress
        )
        meter.add(0)
        for name in self._made.keys() & tensors.keys():
            for piece in tensors[name].pieces:
                _put(name, piece, torch.from_numpy(self._made[name])[piece.part])
        files = {path: TensorFile(path) for path in {tensor.path for tensor in stored_tensors.values()}}
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="dequantize") as pool:
            jobs = [
                pool.submit(job)
                for name, stored in stored_tensors.items()
                for job in _jobs(files[stored.path], stored, tensors[name])
            ]
            try:
                for job in as_completed(jobs):
                    meter.add(job.result())
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise


def _jobs(file: TensorFile, stored: GGUFTensor, tensor: CheckpointTensor) -> Iterator[Callable[[], int]]:
    """Yield tasks that fill the pieces of one tensor; each returns the bytes that it has read."""
    if not all(piece.part for piece in tensor.pieces):  # one that takes the whole tensor, whatever its shape
        yield from (partial(_fill_vector, file, stored, piece, stored.num_bytes) for piece in tensor.pieces)
        return
    rows = sum(piece.part[0].stop - piece.part[0].start for piece in tensor.pieces)
    stays_quantized = stored.type_name in tensor.types and stored.type_name not in FLOATS
    for piece in tensor.pieces:
        if len(stored.shape) == 1:  # a vector is one row of the file
            count = stored.num_bytes * (piece.part[0].stop - piece.part[0].start) // rows
            yield partial(_fill_vector, file, stored, piece, count)
            continue
        begin, end = piece.part[0].start, piece.part[0].stop
        for first, last in [(begin, end)] if tensor.at_once else row_pieces(stored, begin, end):
            count = stored.num_bytes * (last - first) // rows
            yield partial(_fill_blocks if stays_quantized else _fill_rows, file, stored, piece, first, last, count)


def _fill_vector(file: TensorFile, stored: GGUFTensor, piece: Piece, num_bytes: int) -> int:
    values = torch.from_numpy(dequantize_rows(file, stored, 0, 1))
    _put(stored.name, piece, values[piece.part])
    return num_bytes


def _fill_rows(
    file: TensorFile,
    stored: GGUFTensor,
    piece: Piece,
    first: int,
    last: int,
    num_bytes: int,
) -> int:
    """Fill rows [first, last) of the file's tensor; no other task writes these rows, even if they are reordered."""
    values = torch.from_numpy(dequantize_rows(file, stored, first, last))
    _put(stored.name, piece, values[(slice(None), *piece.part[1:])], first - piece.part[0].start)
    return num_bytes


def _fill_blocks(
    file: TensorFile,
    stored: GGUFTensor,
    piece: Piece,
    first: int,
    last: int,
    num_bytes: int,
) -> int:
    """Fill rows [first, last) with blocks as stored, uint8 [rows, bytes]; ModelLoadError if the method refuses them."""
    raw = torch.from_numpy(row_bytes(file, stored, first, last))
    columns = piece.part[1]
    ends = (end // stored.block_elements * stored.block_bytes for end in (columns.start, columns.stop))
    _put(stored.name, piece, raw[:, slice(*ends)], first - piece.part[0].start)
    return num_bytes


def _put(name: str, piece: Piece, values: Tensor, first: int = 0) -> None:
    """Fill a piece's rows from `first` on; ModelLoadError, with the tensor's name, for values that cannot be used."""
    try:
        piece.put(values, first)
    except ValueError as error:
        raise ModelLoadError(f"tensor {name!r} {error}") from None
