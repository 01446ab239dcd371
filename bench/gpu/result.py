"""The measured figures, gathered part by part into one file."""

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
    """One measured number, or the reason why it is missing."""

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
    """The share of `floor` that was reached; 1 is all of it."""
    note: str = ""

    @property
    def key(self) -> str:
        """The name by which targets find the figure."""
        return "/".join(part for part in (self.model, self.what, self.case) if part)


def missing(model: str, what: str, note: str, case: str = "") -> Figure:
    """Return a figure that was not measured, with the reason."""
    return Figure(model=model, what=what, case=case, note=note)


def timed(model: str, what: str, case: str, seconds: Sequence[float], floor: float | None, note: str = "") -> Figure:
    """Return a figure of some rounds' durations, in milliseconds, `floor` given in seconds."""
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
    """Return a figure of tokens a second, of rounds of `amount` tokens each; `floor` is a round's least seconds."""
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
    """The figures of one part of the bench and its machine: parts may have run on several machines of one kind."""

    machine: dict[str, Any]
    """Versions, clocks, and the rates to which this part's fractions refer."""
    figures: list[Figure] = field(default_factory=list)
    seconds: float = 0.0
    ended: str = "in time"
    """`in time`, or the reason why the part was interrupted."""


@dataclass
class Result:
    """The figures of all parts."""

    parts: dict[str, Part] = field(default_factory=dict)

    def find(self, key: str) -> Figure | None:
        """Return the figure with that key that was measured last; None if there is none."""
        found = [figure for part in self.parts.values() for figure in part.figures if figure.key == key]
        return found[-1] if found else None

    def matching(self, *beginnings: str) -> list[Figure]:
        """Return all measured figures whose key begins with this prefix."""
        figures = [figure for part in self.parts.values() for figure in part.figures]
        return [figure for figure in figures if figure.value is not None and figure.key.startswith(beginnings)]


def read(path: Path) -> Result:
    """Return the content of a file; empty if there is no file."""
    if not path.is_file():
        return Result()
    parts = json.loads(path.read_text())["parts"]
    return Result({name: _part(value) for name, value in parts.items()})


def _part(value: dict[str, Any]) -> Part:
    return Part(**{**value, "figures": [Figure(**figure) for figure in value["figures"]]})


def merged(results: Sequence[Result]) -> Result:
    """Return the parts of all results; if several results contain a part, the last one is used."""
    return Result({name: part for result in results for name, part in result.parts.items()})


def stem(directory: Path, gpu: str) -> Path:
    """Return the path `<date>-<gpu>` in `directory`, without a suffix."""
    return directory / f"{datetime.now(UTC):%Y-%m-%d}-{gpu}"


def as_json(result: Result, targets: Sequence[Any]) -> str:
    """Return the content of the file."""
    parts = {name: asdict(part) for name, part in result.parts.items()}
    return json.dumps({"targets": [asdict(target) for target in targets], "parts": parts}, indent=1) + "\n"
