"""What was measured: figures, gathered part by part into one file."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One measured number, or why there is none."""

    model: str
    what: str
    case: str = ""
    unit: str = "ms"
    value: float | None = None
    """The median of `rounds`."""
    low: float | None = None
    high: float | None = None
    rounds: int = 0
    floor: float | None = None
    """The best that this machine's measured rates allow, in `unit`."""
    fraction: float | None = None
    """How much of that was reached, 1 being all."""
    note: str = ""

    @property
    def key(self) -> str:
        """How targets find it."""
        return "/".join(part for part in (self.model, self.what, self.case) if part)


def missing(model: str, what: str, note: str, case: str = "") -> Figure:
    """A figure that was not measured, and why."""
    return Figure(model=model, what=what, case=case, note=note)


def timed(model: str, what: str, case: str, seconds: Sequence[float], floor: float | None, note: str = "") -> Figure:
    """A figure of some rounds' durations, in milliseconds, `floor` given in seconds."""
    middle = statistics.median(seconds)
    return Figure(
        model=model,
        what=what,
        case=case,
        value=1e3 * middle,
        low=1e3 * min(seconds),
        high=1e3 * max(seconds),
        rounds=len(seconds),
        floor=None if floor is None else 1e3 * floor,
        fraction=None if floor is None else floor / middle,
        note=note,
    )


def rate(model: str, what: str, case: str, amount: float, seconds: Sequence[float], floor: float | None) -> Figure:
    """A figure of tokens a second, of rounds that each gave `amount` tokens; `floor` is a round's least seconds."""
    rates = [amount / each for each in seconds]
    middle = statistics.median(rates)
    best = None if floor is None else amount / floor
    return Figure(
        model=model,
        what=what,
        case=case,
        unit="tokens/s",
        value=middle,
        low=min(rates),
        high=max(rates),
        rounds=len(rates),
        floor=best,
        fraction=None if best is None else middle / best,
    )


@dataclass
class Part:
    """What one part of the bench gave, and where: parts may have run on several machines of one kind."""

    machine: dict[str, Any]
    """Versions, clocks, and the rates that this part's fractions are of."""
    figures: list[Figure] = field(default_factory=list)
    seconds: float = 0.0
    ended: str = "in time"
    """`in time`, or what broke it off."""


@dataclass
class Result:
    """All parts."""

    parts: dict[str, Part] = field(default_factory=dict)

    def find(self, key: str) -> Figure | None:
        """The figure with that key that was measured last; None if it never was."""
        found = [figure for part in self.parts.values() for figure in part.figures if figure.key == key]
        return found[-1] if found else None

    def matching(self, *beginnings: str) -> list[Figure]:
        """All figures that were measured and whose key begins so."""
        figures = [figure for part in self.parts.values() for figure in part.figures]
        return [figure for figure in figures if figure.value is not None and figure.key.startswith(beginnings)]


def read(path: Path) -> Result:
    """What a file holds; nothing if there is none."""
    if not path.is_file():
        return Result()
    parts = json.loads(path.read_text())["parts"]
    return Result({name: _part(value) for name, value in parts.items()})


def _part(value: dict[str, Any]) -> Part:
    return Part(**{**value, "figures": [Figure(**figure) for figure in value["figures"]]})


def merged(results: Sequence[Result]) -> Result:
    """The parts of all; of one that several have, the last."""
    return Result({name: part for result in results for name, part in result.parts.items()})


def stem(directory: Path, gpu: str) -> Path:
    """`<date>-<gpu>` in `directory`, without a suffix."""
    return directory / f"{datetime.now(UTC):%Y-%m-%d}-{gpu}"


def as_json(result: Result, targets: Sequence[Any]) -> str:
    """The file's content."""
    parts = {name: asdict(part) for name, part in result.parts.items()}
    return json.dumps({"targets": [asdict(target) for target in targets], "parts": parts}, indent=1) + "\n"
