"""Reads the headers of GGUF files, with every size checked against the file; rows.py reads the tensors.

The format is llama.cpp's (ggml/docs/gguf.md), versions 2 and 3, little-endian. The `gguf` package's own reader takes
seconds for a large vocabulary and trusts the counts in the file (an array that claims 2^60 numbers keeps it busy for
good), so the header is read here; the arithmetic of the quantized types is the package's.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from octavo_engine.errors import ModelLoadError
from octavo_engine.model.gguf.element_types import ELEMENT_TYPES
from octavo_engine.model.gguf.restored import UNCHANGED, Restored
from octavo_engine.model.model_file import open_file

_MAGIC = b"GGUF"
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_LENGTH = struct.Struct("<Q")
_ZEROS = bytes(1 << 20)
_MAX_DIMENSIONS = 4
_MAX_ARRAY_DEPTH = 4
_ALIGNMENT = 32
_MAX_HEADER_BYTES = 256 << 20
_BEGINNINGS = (8 << 20, 64 << 20)
"""How much of a file is read for its header at first: nearly all have less than 8 MiB, with 262,144 tokens, too."""
_MAX_PARTS = 4_000_000
"""The most parts of a header: keys, items of arrays, and tensors, each of which counts as _PARTS_OF_TENSOR items."""
_PARTS_OF_TENSOR = 16


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """The location and type of one tensor in the file."""

    name: str
    shape: tuple[int, ...]
    """Outermost dimension first, as in PyTorch (the file has it the other way round)."""
    type_name: str
    """ggml's name of the element type, such as `Q4_1`."""
    block_elements: int
    """Elements in one quantized block; 1 for plain types."""
    block_bytes: int
    start: int
    """Byte offset in the file."""
    num_bytes: int
    path: Path = field(default=Path(), compare=False)
    """The file."""
    restored: Restored = UNCHANGED

    @property
    def num_elements(self) -> int:
        """The product of the shape."""
        return self.num_bytes // self.block_bytes * self.block_elements


@dataclass(frozen=True, slots=True)
class GGUFFile:
    """The header of a GGUF file: metadata by key (arrays as lists) and tensors by name."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, GGUFTensor]

    @property
    def architecture(self) -> str:
        """`general.architecture`, or an empty string."""
        value = self.metadata.get("general.architecture")
        return value if isinstance(value, str) else ""


_Identity = tuple[Path, int, int, int, int]
_kept: list[dict[_Identity, GGUFFile]] = []
"""Headers by their files' identities, for each `headers_read_once` that is entered; the last of them are used."""


@contextmanager
def headers_read_once() -> Iterator[None]:
    """Keep the headers that are read inside, in any thread, so that a file is read again only if it has changed.

    The start of an engine asks for the header ten times, each time for a few of its keys, and to read a vocabulary of
    262,144 tokens takes 0.3 s.
    """
    _kept.append({})
    try:
        yield
    finally:
        _kept.pop()  # if starts overlap, it does not matter whose headers are dropped


def read_gguf(path: Path) -> GGUFFile:
    """Return metadata and tensor table of the file at `path`, which others may have too: nothing may be changed in it.

    ModelLoadError if the file is cut short, random or inconsistent.
    """
    [kept] = _kept[-1:] or [{}]
    if (key := _identity(path)) is None:
        return _read(path)
    if key not in kept:
        kept[key] = _read(path)
    return kept[key]


def _identity(path: Path) -> _Identity | None:
    """Return path, device, inode, size and time of change of a file; None if there is none to look at."""
    try:
        found = path.stat()
    except OSError:
        return None
    return path, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _read(path: Path) -> GGUFFile:
    """Read a header. The file is not mapped into memory: one that is cut short meanwhile would end the process."""
    try:
        with open_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            found = _parse(file, path, size)
            _check_end(file, found, size)
    except OSError as error:
        raise unreadable(path, error) from None
    except (struct.error, UnicodeDecodeError, RecursionError) as error:
        raise ModelLoadError(f"{path}: not a complete GGUF file (its header is cut or broken: {error})") from None
    return found


def _parse(file: BinaryIO, path: Path, size: int) -> GGUFFile:
    """Return the header. Its size is not known before, so more of the file is read until that is enough."""
    beginning = b""
    for most in _BEGINNINGS:
        beginning += file.read(most - len(beginning))
        with suppress(struct.error):  # cut
            return _Parser(memoryview(beginning), path, size).file()
    beginning += file.read(_MAX_HEADER_BYTES - len(beginning))
    return _Parser(memoryview(beginning), path, size).file()


def _check_end(file: BinaryIO, found: GGUFFile, size: int) -> None:
    """Raise ModelLoadError unless only padding follows the last tensor: otherwise two programs wrote the file."""
    if not (end := max((tensor.start + tensor.num_bytes for tensor in found.tensors.values()), default=0)):
        return
    alignment = found.metadata.get("general.alignment", _ALIGNMENT)
    file.seek(-(-end // alignment) * alignment)
    while piece := file.read(len(_ZEROS)):
        if piece != _ZEROS[: len(piece)]:  # zeros are padding to more than the format asks for
            raise ModelLoadError(
                f"{found.path}: damaged: its last tensor ends at byte {end}, but there are {size - end} bytes more; "
                "fetch it again"
            )


def unreadable(path: Path, error: OSError) -> ModelLoadError:
    """Return the error about a file that cannot be read."""
    return ModelLoadError(f"{path}: cannot be read as a GGUF file: {error.strerror or error}")


def has_header(beginning: bytes, size: int, name: str) -> bool:
    """Return True if the `beginning` of a file of `size` bytes has its whole header; raises if it is broken."""
    try:
        _Parser(memoryview(beginning), Path(name), size).file()
    except struct.error:  # cut
        return False
    except (UnicodeDecodeError, RecursionError) as error:
        raise ModelLoadError(f"{name}: broken GGUF header: {error}") from None
    return True


class _Parser:
    """Reads the bytes of a file, or its first ones, one value after another; struct.error if it reads beyond them.

    A value that cannot be true of a file of `size` bytes is a ModelLoadError.
    """

    def __init__(self, data: memoryview, path: Path, size: int) -> None:
        self.data, self.path, self.size, self.offset = data, path, size, 0
        self.parts_left = _MAX_PARTS

    def file(self) -> GGUFFile:
        if bytes(self.data[:4]) != _MAGIC:
            raise ModelLoadError(f"{self.path}: not a GGUF file (it does not begin with the letters GGUF)")
        self.offset = 4
        version = self.scalar("I")
        if version not in (2, 3):
            raise ModelLoadError(f"{self.path}: GGUF version {version} is not supported, only 2 and 3, little-endian")
        tensor_count, key_count = self.count("tensors", 24, _PARTS_OF_TENSOR), self.count("metadata keys", 12, 1)
        metadata: dict[str, Any] = {}
        for _ in range(key_count):
            key = self.string()
            metadata[key] = self.value(self.scalar("I"))
        infos = [self.tensor_info() for _ in range(tensor_count)]
        alignment = metadata.get("general.alignment", _ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise ModelLoadError(f"{self.path}: general.alignment {alignment!r} is not a power of two")
        start = -(-self.offset // alignment) * alignment
        tensors = [self.place(name, shape, kind, start + offset) for name, shape, kind, offset in infos]
        self.check_layout(tensors)
        return GGUFFile(self.path, metadata, {tensor.name: tensor for tensor in tensors})

    def scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from(f"<{code}", self.data, self.offset)
        self.offset += struct.calcsize(f"<{code}")
        return value

    def count(self, what: str, least_bytes: int, parts: int = 0) -> int:
        """Read a 64-bit count of items of at least `least_bytes` each, which must fit into the rest of the file.

        Each item counts as `parts` of the most parts that a header may have.
        """
        value: int = self.scalar("Q")
        if value * least_bytes > self.size - self.offset:
            raise ModelLoadError(
                f"{self.path}: not a complete GGUF file: it claims {value} {what} but has only "
                f"{self.size - self.offset} bytes left"
            )
        if self.offset + value * least_bytes > _MAX_HEADER_BYTES:
            raise ModelLoadError(f"{self.path}: a header of more than {_MAX_HEADER_BYTES} bytes is not read")
        self.parts_left -= value * parts
        if self.parts_left < 0:
            raise ModelLoadError(f"{self.path}: a header with {value} {what} is larger than any model's, and not read")
        return value

    def string(self) -> str:
        length = self.count("bytes of text", 1)
        (raw,) = struct.unpack_from(f"{length}s", self.data, self.offset)
        self.offset += length
        return str(raw, "utf-8")

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind])
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY or depth == _MAX_ARRAY_DEPTH:
            raise ModelLoadError(f"{self.path}: broken GGUF header: value type {kind} at byte {self.offset}")
        item = self.scalar("I")
        if item in _SCALARS:
            code = _SCALARS[item]
            length = self.count("array items", struct.calcsize(f"<{code}"), 1)
            values = struct.unpack_from(f"<{length}{code}", self.data, self.offset)
            self.offset += struct.calcsize(f"<{length}{code}")
            return list(values)
        length = self.count("array items", 8, 1)
        if item == _STRING:
            return self.strings(length)
        return [self.value(item, depth + 1) for _ in range(length)]

    def strings(self, length: int) -> list[str]:
        """Read `length` strings in one loop, since a call for each string of a vocabulary takes a third of a second.

        `string` reads those that end beyond the data, and raises their error.
        """
        data, end = self.data, min(len(self.data), self.size, _MAX_HEADER_BYTES)
        offset, strings = self.offset, list[str]()
        for _ in range(length):
            begin = offset + _LENGTH.size
            if begin > end or (offset := begin + _LENGTH.unpack_from(data, offset)[0]) > end:
                self.offset = begin - _LENGTH.size
                strings.append(self.string())
                offset = self.offset
            else:
                strings.append(str(data[begin:offset], "utf-8"))
        self.offset = offset
        return strings

    def tensor_info(self) -> tuple[str, tuple[int, ...], int, int]:
        name, dimensions = self.string(), self.scalar("I")
        if dimensions > _MAX_DIMENSIONS:
            raise ModelLoadError(f"{self.path}: tensor {name!r} claims {dimensions} dimensions")
        shape = tuple(reversed([self.scalar("Q") for _ in range(dimensions)]))
        return name, shape, self.scalar("I"), self.scalar("Q")

    def place(self, name: str, shape: tuple[int, ...], kind: int, start: int) -> GGUFTensor:
        if (found := ELEMENT_TYPES.get(kind)) is None:
            raise ModelLoadError(f"{self.path}: tensor {name!r} has the unknown element type {kind}")
        elements = 1
        for dimension in shape:
            elements *= dimension
        if elements == 0 or not shape or shape[-1] % found.block_elements:
            raise ModelLoadError(
                f"{self.path}: tensor {name!r} of shape {list(shape)} cannot be made of {found.name} blocks of "
                f"{found.block_elements}"
            )
        size = elements // found.block_elements * found.block_bytes
        if start + size > self.size:
            raise ModelLoadError(
                f"{self.path}: cut short: tensor {name!r} ends at byte {start + size}, the file at {self.size}; "
                "fetch it again"
            )
        return GGUFTensor(name, shape, found.name, found.block_elements, found.block_bytes, start, size, self.path)

    def check_layout(self, tensors: list[GGUFTensor]) -> None:
        """Check that no tensor appears twice or overlaps another."""
        seen: set[str] = set()
        end, before = 0, ""
        for tensor in sorted(tensors, key=lambda tensor: tensor.start):
            if tensor.name in seen:
                raise ModelLoadError(f"{self.path}: tensor {tensor.name!r} appears twice")
            if tensor.start < end:
                raise ModelLoadError(f"{self.path}: tensors {before!r} and {tensor.name!r} overlap")
            seen.add(tensor.name)
            end, before = tensor.start + tensor.num_bytes, tensor.name
