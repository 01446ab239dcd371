"""Numbers of the command line: what argparse calls as `type=`, with messages that say what may be given."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable
from typing import TypeVar

Number = TypeVar("Number", int, float)


def number_within(least: float, most: float) -> Callable[[str], float]:
    """Read a number from `least` to `most`."""
    return lambda text: _within(text, float, least, most)


def whole_number_within(least: int, most: int) -> Callable[[str], int]:
    """Read a whole number from `least` to `most`."""
    return lambda text: _within(text, int, least, most)


def list_of(read: Callable[[str], Number]) -> Callable[[str], list[Number]]:
    """Read several of what `read` reads, with commas between them."""
    return lambda text: [read(part) for part in text.split(",")]


def _within(text: str, kind: Callable[[str], Number], least: Number, most: Number) -> Number:
    try:
        value = kind(text)
    except ValueError:
        value = None
    if value is None or not least <= value <= most:
        name = "a whole number" if kind is int else "a number"
        raise ArgumentTypeError(f"{text!r} is not {name} from {least:,} to {most:,}")
    return value
