"""Reads and checks an adapter's files, and copies them into host memory.

The file's header is checked before anything is copied; every rank reads the copy, not the file. Checks use numpy
alone: a second thread that computes with PyTorch would slow steps on a CPU (runner/device_thread.py).
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from octavo_engine.errors import AdapterNotFoundError, ModelLoadError
from octavo_engine.model.checkpoint.safetensors_file import DTYPE_BYTES, TensorHeader, header_bytes, parse_header
from octavo_engine.model.checkpoint.tensors import FLOATS
from octavo_engine.model.lora.adapter import Adapter, AdapterModule, MemoryFile
from octavo_engine.model.lora.expert_targets import ExpertStack
from octavo_engine.model.lora.module_names import ModuleNames, module_of
from octavo_engine.model.lora.peft_config import CONFIG_FILE, PeftConfig, read_peft_config
from octavo_engine.model.model_file import open_file

WEIGHTS_FILE = "adapter_model.safetensors"
_PICKLE = "adapter_model.bin"
_COPY_BYTES = 8 << 20
_CHECK_BYTES = 1 << 20
"""The bytes that are checked at once, which stay in a cache."""
_METADATA_BYTES = 1 << 20
"""The most bytes of a header's metadata about the whole file."""
_ENTRY_BYTES = 256
"""The most bytes of one tensor in a header, apart from its module's name."""
_LONGEST_NAME = 1000
"""The most characters of a tensor's name."""
_MOST_COMPARISONS = 2_000_000
"""The most comparisons of module names with patterns; so many take some seconds of a thread for which steps may wait.
EVA needs them for 1,400 modules, each with a pattern."""
_MOST_SECONDS = 4.0
"""The most CPU seconds for finding an adapter's modules, since few patterns can take long, too."""
_FLOAT16_MAX = 65504.0
_LARGEST_PRODUCT = 1e15
"""The largest change of a weight. Norms square what layers give in float32, whose largest number is 3e38: with larger
changes nearly all of their sums are infinite, with smaller ones some may be, which ends the request alone."""
_SIDES = {"lora_A": 0, "lora_B": 1}


@dataclass(frozen=True, slots=True)
class AdapterLimits:
    """Limits of the adapters that the engine accepts."""

    names: ModuleNames
    max_rank: int
    half: bool
    """Whether adapters are computed in float16, in which large numbers are infinite."""


def read_adapter(directory: Path, limits: AdapterLimits) -> Adapter:
    """Return the adapter in a directory as PEFT saves it; ModelLoadError says what is wrong with it.

    It is an error if the files change while they are read, for example because another adapter replaces them. Nothing
    of a file is copied before its header is checked.
    """
    versions, path = _versions(directory), directory / WEIGHTS_FILE
    config = read_peft_config(directory)
    if config.rank > limits.max_rank and not config.rank_pattern:
        raise _too_large(directory, config.rank, limits.max_rank)
    try:
        with _opened(path) as source:
            size = os.fstat(source.fileno()).st_size
            header = header_bytes(path, source, size, _most_header_bytes(limits))
            headers = parse_header(path, header, size).tensors
            with _about(path):
                modules = _modules(headers, config, limits)
            file, digest = _copy(header, source, size)
    except OSError as error:
        raise ModelLoadError(f"{path}: cannot be read: {error.strerror}") from None
    if os.fstat(file.fd).st_size != size or _versions(directory) != versions:
        raise ModelLoadError(f"{directory}: its files were changed while they were read; load it again")
    with _about(path):
        _check_numbers(file, headers, modules, half=limits.half)
    digest.update(json.dumps([[module.name, module.scale, module.transposed] for module in modules]).encode())
    return Adapter(digest.hexdigest(), max(module.rank for module in modules), tuple(modules), size, file, config.base)


def _versions(directory: Path) -> list[tuple[int, int, int]]:
    """Return values that change when a file is written to or replaced."""
    found = []
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        with suppress(OSError):  # it does not exist, or was removed just now
            stat = (directory / name).stat()
            found.append((stat.st_ino, stat.st_size, stat.st_mtime_ns))
    return found


@contextmanager
def _about(path: Path) -> Iterator[None]:
    """Add the file's path to the messages of ModelLoadErrors."""
    try:
        yield
    except ModelLoadError as error:
        raise ModelLoadError(f"{path}: {error}") from None


def _too_large(where: Path, rank: int, most: int) -> ModelLoadError:
    advice = f"raise --max-lora-rank to {rank}" if rank <= 512 else "no more than 512 is supported"
    return ModelLoadError(f"{where}: the adapter has rank {rank}, and --max-lora-rank is {most}; {advice}")


def _most_header_bytes(limits: AdapterLimits) -> int:
    """Return the longest header that is read: A and B of every module, also of those that cannot have adapters.

    Modules that cannot have adapters are counted, so that the error about them says why.
    """
    names = chain(limits.names.shapes, limits.names.left_out)
    return _METADATA_BYTES + sum(2 * (_ENTRY_BYTES + len(name)) for name in names)


def _opened(path: Path) -> BinaryIO:
    """Open the file of weights."""
    if not path.is_file():
        pickled = f"only {_PICKLE}, a pickle, which can run code and is never loaded; save it as safetensors"
        reason = pickled if path.with_name(_PICKLE).exists() else f"no {WEIGHTS_FILE}"
        raise AdapterNotFoundError(f"{path.parent}: no weights: there is {reason}")
    return open_file(path)


def _copy(header: bytes, source: BinaryIO, size: int) -> tuple[MemoryFile, Any]:
    """Copy a file, whose `header` was read already, into memory; returns the copy and its digest.

    At most one part more than `size` bytes is read, since a file that grows meanwhile might never end.
    """
    file, digest, part = MemoryFile("octavo-adapter"), hashlib.sha256(), header
    while part:
        digest.update(part)
        view = memoryview(part)
        while view:
            view = view[os.write(file.fd, view) :]
        size -= len(part)
        part = source.read(_COPY_BYTES) if size >= 0 else b""
    return file, digest


def _modules(headers: Mapping[str, TensorHeader], config: PeftConfig, limits: AdapterLimits) -> list[AdapterModule]:
    """Return the adapter's modules by the names of the model, each with its checked shape and both its halves."""
    pairs: dict[str, list[str]] = {}
    for name in headers:
        module, side = _split(name)
        pair = pairs.setdefault(module, ["", ""])
        if pair[side]:
            raise ModelLoadError(f"tensors {pair[side]!r} and {name!r} are both lora_{'AB'[side]} of one module")
        pair[side] = name
    found: dict[str, AdapterModule] = {}
    _check_patterns(len(pairs), config)
    end = time.thread_time() + _MOST_SECONDS
    for module, (a, b) in pairs.items():
        if time.thread_time() > end:
            raise ModelLoadError(
                f"to find {len(pairs)} modules takes more than {_MOST_SECONDS:g} s of computing: write patterns with "
                f"fewer *, +, ? and | into {CONFIG_FILE}"
            )
        stack = limits.names.find_stack(module)
        own = "" if stack is not None else limits.names.find(module)
        if not a or not b:
            raise ModelLoadError(f"{module}: lora_{'A' if a else 'B'} is present without lora_{'B' if a else 'A'}")
        transposed = False
        if stack is not None:
            own, transposed = _parameter(module, stack, (headers[a], headers[b]), config)
        if own in found:
            raise ModelLoadError(f"{module}: another module of the file also changes {own}; only one may")
        bare = module_of(module) if stack is None else f"{module_of(module)}.{own.rpartition('.')[2]}"
        found[own] = _module(own, bare, (a, b), headers, config, limits, transposed=transposed)
    if not found:
        raise ModelLoadError("the file holds no tensors")
    _check_rows(found, limits.names)
    return list(found.values())


def _check_rows(found: Collection[str], names: ModuleNames) -> None:
    """Raise ModelLoadError if two modules of a file change the same rows: one expert and all experts of a layer, or a
    projection alone and together with others."""
    together = {name.rpartition(".")[0] for name in found if names.shapes[name].experts > 1}
    for name in found:
        if (whole := names.whole_of.get(name)) in found:
            raise ModelLoadError(f"{name}: the file has a module of {whole}, too, which includes its rows")
        experts = f"{name.partition('.experts.')[0]}.experts"
        if experts in together and names.shapes[name].experts == 1:
            raise ModelLoadError(f"{name}: the file has a module of all experts ({experts}), too")


def _check_patterns(modules: int, config: PeftConfig) -> None:
    """Raise ModelLoadError if there are too many patterns for the number of modules."""
    for name, patterns in (("rank_pattern", config.rank_pattern), ("alpha_pattern", config.alpha_pattern)):
        if len(patterns) * modules > _MOST_COMPARISONS:
            raise ModelLoadError(
                f"{CONFIG_FILE}: {name} has {len(patterns)} patterns for {modules} modules, and with so many modules "
                f"at most {_MOST_COMPARISONS // modules} are compared with their names"
            )


def _split(name: str) -> tuple[str, int]:
    """Return a tensor's module and whether it is A (0) or B (1); ModelLoadError for tensors of another kind."""
    if len(name) > _LONGEST_NAME:
        raise ModelLoadError(f"tensor {name[:100]!r}… cannot be used: its name has {len(name)} characters")
    parts = name.split(".")
    if parts[-1] == "weight" and len(parts) > 2:
        for back in (2, 3):  # with an adapter's name between in what old versions saved
            if len(parts) > back and parts[-back] in _SIDES:
                return ".".join(parts[:-back]), _SIDES[parts[-back]]
    reasons = {
        "lora_embedding": "adapters of embeddings are not supported",
        "lora_magnitude": "DoRA is not supported",
        ".bias": "biases of adapters are not supported",
        ".base_layer.": "it is a weight of the base, which PEFT saves with adapters of embeddings or the head, which "
        "are not supported",
    }
    default = "it is not a lora_A or lora_B of a linear layer"
    reason = next((reason for part, reason in reasons.items() if part in name), default)
    raise ModelLoadError(f"tensor {name[:200]!r} cannot be used: {reason}")


def _parameter(
    module: str, stack: ExpertStack, pair: tuple[TensorHeader, TensorHeader], config: PeftConfig
) -> tuple[str, bool]:
    """Return the parameter of a module that A and B change, and whether they change it transposed."""
    a, b = (header.shape for header in pair)
    if len(a) != 2 or len(b) != 2:
        raise ModelLoadError(f"{module}: lora_A is {list(a)} and lora_B {list(b)}, not matrices")
    try:
        return stack.find(a[1], b[0], before_019=config.before_019)
    except ModelLoadError as error:
        raise ModelLoadError(f"{module}: {error}") from None


def _module(
    own: str,
    bare: str,
    pair: tuple[str, str],
    headers: Mapping[str, TensorHeader],
    config: PeftConfig,
    limits: AdapterLimits,
    *,
    transposed: bool,
) -> AdapterModule:
    shape = limits.names.shapes[own]
    columns, rows = (shape.rows, shape.columns) if transposed else (shape.columns, shape.rows)
    rank = config.rank_of(bare)
    if rank > limits.max_rank:
        raise _too_large(Path(bare), rank, limits.max_rank)
    for name, wanted in zip(pair, ((rank * shape.experts, columns), (rows, rank * shape.experts)), strict=True):
        header = headers[name]
        if header.dtype not in FLOATS:
            raise ModelLoadError(f"tensor {name!r} is {header.dtype}, not floating point of 16 bits or more")
        if header.shape != wanted:
            raise ModelLoadError(
                f"tensor {name!r} is {list(header.shape)}, expected {list(wanted)}: the configuration says rank {rank},"
                f" and the model's layer is {shape.columns} to {shape.rows}"
                + (f" for each of {shape.experts} experts" if shape.experts > 1 else "")
            )
    num_bytes = sum(headers[name].num_bytes for name in pair)
    return AdapterModule(own, *pair, rank, config.scale(bare, rank), num_bytes, transposed)


def _check_numbers(
    file: MemoryFile, headers: Mapping[str, TensorHeader], modules: Iterable[AdapterModule], *, half: bool
) -> None:
    """Raise ModelLoadError unless all numbers, and the products of A and B, are small enough to be computed with."""
    memory, most = mmap.mmap(file.fd, 0, prot=mmap.PROT_READ), _FLOAT16_MAX if half else float(np.finfo(np.float32).max)
    largest = {name: _largest(memory, header) for name, header in headers.items()}
    for name, number in largest.items():
        if not number <= most:  # the comparison is False for NaN
            limit = f", or larger than float16's largest, {_FLOAT16_MAX:g}" if half else ""
            raise ModelLoadError(f"tensor {name!r} holds a number that is not finite{limit}: it cannot be used")
    for module in modules:
        product = largest[module.a] * largest[module.b] * module.rank * abs(module.scale)
        if product > _LARGEST_PRODUCT:
            raise ModelLoadError(
                f"tensors {module.a!r} and {module.b!r} hold numbers up to {largest[module.a]:.3g} and "
                f"{largest[module.b]:.3g}, and so they may change a weight by {product:.3g}; with more than "
                f"{_LARGEST_PRODUCT:g} the model's numbers overflow: it cannot be used"
            )


def _largest(memory: mmap.mmap, header: TensorHeader) -> float:
    """Return the largest absolute number of a tensor; NaN if it holds one.

    Numbers without signs are ordered like their bits, infinity and NaN last, so the largest bits decide.
    """
    size, most = DTYPE_BYTES[header.dtype], 0
    for start in range(0, header.num_bytes, _CHECK_BYTES):
        count = min(_CHECK_BYTES, header.num_bytes - start) // size
        bits: NDArray[Any] = np.frombuffer(memory, f"<u{size}", count, header.begin + start)
        most = max(most, int((bits & (np.iinfo(bits.dtype).max >> 1)).max()))
    if header.dtype == "BF16":
        return float(np.uint32(most << 16).view(np.float32))
    return float(np.array(most, f"<u{size}").view(f"<f{size}"))
