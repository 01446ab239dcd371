"""A checked LoRA adapter in host memory, and the writes that put it into a slot on a device."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import chain

_WRITE_BYTES = 8 << 20
"""The most bytes of a write onto a device, or one rank of one module: a step waits for it, a few milliseconds."""


@dataclass(frozen=True, slots=True)
class AdapterModule:
    """An adapter's addend of one linear layer: `scale` times b [rows, rank] a [rank, columns] x."""

    name: str
    """The linear layer's name in the base model's checkpoint."""
    a: str
    """Name of the tensor in the file."""
    b: str
    rank: int
    scale: float
    num_bytes: int
    transposed: bool = False
    """Whether B A changes the transposed weight."""


@dataclass(frozen=True, slots=True)
class ModulePart:
    """Some ranks of a module: rows of A and columns of B, for each of its experts if it has several."""

    module: AdapterModule
    begin: int
    end: int

    @property
    def num_bytes(self) -> int:
        """The bytes of this part in the file."""
        return self.module.num_bytes * (self.end - self.begin) // self.module.rank


class MemoryFile:
    """A file in memory, without a name, that exists as long as this object."""

    def __init__(self, label: str) -> None:
        self.fd = os.memfd_create(label)

    @property
    def path(self) -> str:
        """The path by which processes of the same user can open the file."""
        return f"/proc/{os.getpid()}/fd/{self.fd}"

    def __del__(self) -> None:
        os.close(self.fd)


@dataclass(frozen=True, slots=True)
class AdapterWrite:
    """A part of an adapter to put into a slot. Parts are written in order; the `first` one empties the slot before."""

    slot: int
    digest: str
    path: str
    """The path of the adapter's file in memory, for processes of the same user."""
    modules: tuple[ModulePart, ...]
    first: bool
    last: bool
    file: MemoryFile | None = field(default=None, compare=False)
    """A reference to the file, so that the path is valid as long as this write exists."""


def encode_write(write: AdapterWrite) -> bytes:
    """Encode a write for ranks in other processes, as JSON, which begins with a brace."""
    return json.dumps(asdict(replace(write, file=None))).encode()


def decode_write(data: bytes) -> AdapterWrite:
    """Decode the result of `encode_write`."""
    values = json.loads(data)
    parts = (ModulePart(**{**part, "module": AdapterModule(**part["module"])}) for part in values["modules"])
    return AdapterWrite(**{**values, "modules": tuple(parts)})


@dataclass(frozen=True, slots=True)
class Adapter:
    """A checked adapter in host memory."""

    digest: str
    """A digest of its weights and how they are used: adapters with equal digests are equal."""
    rank: int
    """The largest rank of its modules."""
    modules: tuple[AdapterModule, ...]
    num_bytes: int
    file: MemoryFile
    base: str = ""
    """The base model that it was trained on, as its configuration names it."""

    def writes(self, slot: int) -> Iterator[AdapterWrite]:
        """Yield the writes, of bounded size each, that put the adapter into a slot."""
        together: list[list[ModulePart]] = [[]]
        size = 0
        for part in chain.from_iterable(map(_parts, self.modules)):
            if together[-1] and size + part.num_bytes > _WRITE_BYTES:
                together.append([])
                size = 0
            together[-1].append(part)
            size += part.num_bytes
        for index, parts in enumerate(together):
            ends = {"first": index == 0, "last": index == len(together) - 1}
            yield AdapterWrite(slot, self.digest, self.file.path, tuple(parts), **ends, file=self.file)


def _parts(module: AdapterModule) -> Iterator[ModulePart]:
    """Yield a module in one part, or, if it is too large for one write, in parts of some of its ranks each."""
    count = max(1, _WRITE_BYTES * module.rank // max(1, module.num_bytes))
    for begin in range(0, module.rank, count):
        yield ModulePart(module, begin, min(module.rank, begin + count))
