"""Reads safetensors headers and checks them before any of their numbers is used.

The format: 8 bytes of header length, little-endian, a JSON object of tensors, then their bytes. The library checks
it again when it opens the file; here errors are sentences, and sizes are known before anything is allocated.
"""

from __future__ import annotations

import json
import os
import re
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

from octavo_engine.errors import ModelLoadError
from octavo_engine.model.model_file import has_file, open_file, read_file

_MAX_HEADER_BYTES = 32 << 20
"""The most bytes of one file's header, a third of the library's own limit: 200,000 tensors, a few seconds and a GiB of
memory to read."""
_MAX_HEADERS_BYTES = 100_000_000
"""The most bytes of the headers of all files of a model."""
_MAX_INDEX_BYTES = 100_000_000
_MAX_FILES = 10_000
"""The most files that an index may name: looking for a million would take half a minute."""
DTYPE_BYTES = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 8),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 2),
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E8M0", "I8", "U8", "BOOL"), 1),
}
"""The bytes of one number, by safetensors' names."""
_FILE_NAME = re.compile(r"(?!\.)[^/\0]{1,200}\.safetensors")
_MAX_DIMENSIONS = 8
"""The most dimensions of a tensor: with tens of thousands, the product of a hostile header's shape takes seconds to
compute."""


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """One tensor as the header describes it."""

    dtype: str
    """safetensors' name, such as `BF16`."""
    shape: tuple[int, ...]
    num_bytes: int
    begin: int = 0
    """The offset of its numbers in the file."""


@dataclass(frozen=True, slots=True)
class SafetensorsHeader:
    """One file's tensors by name."""

    path: Path
    tensors: dict[str, TensorHeader]
    num_bytes: int = 0
    """The bytes of the header itself."""


def weight_files(directory: Path) -> tuple[Path, ...]:
    """Return the safetensors files of a model directory, one or those its index names; ModelLoadError if any is
    missing."""
    single, index = directory / "model.safetensors", directory / "model.safetensors.index.json"
    if has_file(single):  # before the index, as transformers does
        return (single,)
    if has_file(index):
        return tuple(directory / name for name in _indexed_names(index))
    files = sorted(directory.glob("*.safetensors"))
    if len(files) == 1:
        return tuple(files)
    if files:
        raise ModelLoadError(
            f"{directory}: {len(files)} safetensors files but no {index.name} that says which tensor is in which file"
        )
    pickled = [*directory.glob("*.bin"), *directory.glob("*.pt"), *directory.glob("*.pth")]
    reason = (
        f"only {pickled[0].name}, a pickle, which can run code and is never loaded; convert it to safetensors"
        if pickled
        else "neither model.safetensors nor model.safetensors.index.json"
    )
    raise ModelLoadError(f"{directory}: no weights: there is {reason}")


def _indexed_names(index: Path) -> list[str]:
    try:
        value = json.loads(read_file(index, _MAX_INDEX_BYTES))
        names = sorted(set(value["weight_map"].values()))
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise ModelLoadError(f"{index}: not a valid index (an object with weight_map): {error!r}") from None
    if len(names) > _MAX_FILES:
        raise ModelLoadError(f"{index}: weight_map names {len(names)} files, and at most {_MAX_FILES} are read")
    for name in names:
        # The index is not trusted: it may only name files in its own folder.
        if not isinstance(name, str) or not _FILE_NAME.fullmatch(name):
            shown = repr(name)[:200]
            raise ModelLoadError(f"{index}: weight_map names {shown}, which is not a safetensors file beside the index")
    missing = [name for name in names if not has_file(index.parent / name)]
    if missing or not names:
        shown = ", ".join(missing[:3]) + (" …" if len(missing) > 3 else "")
        raise ModelLoadError(
            f"{index.parent}: {len(missing)} of {len(names)} weight files are missing ({shown}); fetch them again"
        )
    return names


def has_weights(directory: Path) -> bool:
    """Return True if all weight files of a model directory are here: a repository's small files are fetched first."""
    try:
        return bool(weight_files(directory))
    except ModelLoadError:
        return False


def read_headers(directory: Path) -> tuple[SafetensorsHeader, ...]:
    """Return the headers of all weight files; ModelLoadError if one is cut short, inconsistent, or repeats a tensor."""
    headers = []
    owner: dict[str, Path] = {}
    left = _MAX_HEADERS_BYTES
    for path in weight_files(directory):
        headers.append(header := read_header(path))
        left -= header.num_bytes
        if left < 0:
            raise ModelLoadError(f"{directory}: headers of more than {_MAX_HEADERS_BYTES} bytes in all are not read")
        for name in header.tensors:
            if name in owner:
                raise ModelLoadError(f"{header.path}: tensor {name!r} is also in {owner[name].name}")
            owner[name] = header.path
    return tuple(headers)


def read_header(path: Path) -> SafetensorsHeader:
    """Return one file's header; ModelLoadError unless its tensors lie one after another and fill the file exactly."""
    try:
        with open_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            return parse_header(path, header_bytes(path, file, size), size)
    except OSError as error:
        raise ModelLoadError(f"{path}: cannot be read: {error.strerror}") from None


def header_bytes(path: Path, file: BinaryIO, size: int, most: int = _MAX_HEADER_BYTES) -> bytes:
    """Return the header's bytes in a file of `size` bytes; ModelLoadError if they are more than `most`."""
    if size < 8:
        raise ModelLoadError(f"{path}: {size} bytes is too short for a safetensors file; fetch it again")
    if len(first := file.read(8)) < 8:
        raise ModelLoadError(f"{path}: it was cut short while it was read")
    (length,) = struct.unpack("<Q", first)
    if length > size - 8:
        raise ModelLoadError(
            f"{path}: a header of {length} bytes in a file of {size}: cut short, or not a safetensors file"
        )
    if length > most:
        raise ModelLoadError(f"{path}: a header of {length} bytes, and at most {most} are read")
    return first + file.read(length)


def parse_header(path: Path, data: bytes, size: int) -> SafetensorsHeader:
    """Return the header that `header_bytes` has read from a file of `size` bytes, checked as `read_header` does."""
    try:
        values = json.loads(data[8:])
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path}: the header is not valid JSON: {error}") from None
    if not isinstance(values, dict):
        raise ModelLoadError(f"{path}: the header is a JSON {type(values).__name__}, not an object")
    values.pop("__metadata__", None)
    return SafetensorsHeader(path, _check_tensors(path, values, len(data), size - len(data)), len(data) - 8)


def _check_tensors(path: Path, values: dict[str, Any], data_begin: int, data_bytes: int) -> dict[str, TensorHeader]:
    tensors: dict[str, TensorHeader] = {}
    ranges: list[tuple[int, int, str]] = []
    for name, value in values.items():
        dtype, shape, begin, end = _fields(path, name, value)
        needed = _tensor_bytes(path, name, dtype, shape, data_bytes)
        if end - begin != needed:
            raise ModelLoadError(
                f"{path}: tensor {name!r} of {dtype} {list(shape)} needs {needed} bytes but has {end - begin}"
            )
        tensors[name] = TensorHeader(dtype, shape, needed, data_begin + begin)
        ranges.append((begin, end, name))
    _check_ranges(path, ranges, data_bytes)
    return tensors


def _fields(path: Path, name: str, value: Any) -> tuple[str, tuple[int, ...], int, int]:
    """Return a tensor's dtype and shape, and where its data begin and end."""
    try:
        dtype, shape, (begin, end) = value["dtype"], tuple(value["shape"]), value["data_offsets"]
        valid = isinstance(dtype, str) and all(type(n) is int and n >= 0 for n in (*shape, begin, end))
    except (KeyError, TypeError, ValueError):
        valid = False
    if not valid:
        raise ModelLoadError(f"{path}: tensor {name!r} has no valid dtype, shape and data_offsets")
    return dtype, shape, begin, end


def _tensor_bytes(path: Path, name: str, dtype: str, shape: tuple[int, ...], data_bytes: int) -> int:
    """Return the bytes of a tensor of this dtype and shape; ModelLoadError if no tensor of the file can have them."""
    if dtype not in DTYPE_BYTES:
        raise ModelLoadError(f"{path}: tensor {name!r} has the unknown dtype {dtype!r}")
    if len(shape) > _MAX_DIMENSIONS:
        raise ModelLoadError(
            f"{path}: tensor {name!r} has {len(shape)} dimensions, and a tensor may have {_MAX_DIMENSIONS}"
        )
    if any(dimension > data_bytes for dimension in shape):
        raise ModelLoadError(f"{path}: tensor {name!r} has a dimension larger than the file")
    return DTYPE_BYTES[dtype] * prod(shape)


def _check_ranges(path: Path, ranges: list[tuple[int, int, str]], data_bytes: int) -> None:
    """Check that the tensors' ranges of bytes cover the data without holes or overlaps."""
    position = 0
    for begin, end, name in sorted(ranges):
        if end > data_bytes:
            raise ModelLoadError(
                f"{path}: cut short: tensor {name!r} ends at byte {end} of the data, which has only {data_bytes}; "
                "fetch the file again"
            )
        if begin != position:
            fault = "overlaps another" if begin < position else "comes after a hole"
            raise ModelLoadError(f"{path}: tensor {name!r} {fault} (byte {begin}, expected {position})")
        position = end
    if position != data_bytes:
        raise ModelLoadError(f"{path}: {data_bytes - position} bytes at the end belong to no tensor")
