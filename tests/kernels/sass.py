"""Reads machine code (SASS) as cuobjdump prints it: the instructions of a kernel's inner loop."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

_LINE = re.compile(r"^\s*/\*(?P<address>[0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?(?P<name>[A-Z]\w*)(?P<rest>[^;]*);", re.M)
_TARGET = re.compile(r"0x([0-9a-f]+)\s*$")
_PRODUCTS = ("HGMMA", "QGMMA", "HMMA", "QMMA", "IMMA")


@dataclass(frozen=True)
class Instruction:
    """One line: where it stands, what it is, and where it jumps to, if it does."""

    address: int
    name: str
    """Without modifiers: `LDG` for `LDG.E.128`."""
    target: int | None


def instructions(sass: str) -> list[Instruction]:
    """All of a listing of one kernel, in its order."""
    return [
        Instruction(int(found["address"], 16), found["name"], _target(found["name"], found["rest"]))
        for found in _LINE.finditer(sass)
    ]


def _target(name: str, rest: str) -> int | None:
    found = _TARGET.search(rest.strip()) if name == "BRA" else None
    return int(found[1], 16) if found else None


def inner_loops(sass: str) -> list[Counter[str]]:
    """The instructions of each loop that contains no other, by kind.

    A loop is what lies between a branch back and its target; a branch to itself, with which listings end, is none.
    """
    code = instructions(sass)
    spans = {(line.target, line.address) for line in code if line.target is not None and line.target < line.address}
    innermost = [
        span for span in spans if not any(span[0] <= other[0] and other[1] <= span[1] for other in spans - {span})
    ]
    return [Counter(line.name for line in code if first <= line.address <= last) for first, last in sorted(innermost)]


def inner_loop(sass: str) -> Counter[str]:
    """The one that matters: with most matrix products, and of those (or if none has any) the longest."""
    loops = inner_loops(sass)
    return max(loops, key=lambda loop: (sum(loop[kind] for kind in _PRODUCTS), loop.total()), default=Counter())
