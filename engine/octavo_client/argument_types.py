"""Functions that read numbers of the command line (argparse's `type=`), whose messages say which are allowed."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable
from typing import TypeVar

Number = TypeVar("Number", int, float)


def number_within(least: float, most: float) -> Callable[[str], float]:
    """Return a function that reads a number from `least` to `most`."""
    return lambda text: _within(text, float, least, most)


def whole_number_within(least: int, most: int) -> Callable[[str], int]:
    """Return a function that reads a whole number from `least` to `most`."""
    return lambda text: _within(text, int, least, most)


def list_of(read: Callable[[str], Number]) -> Callable[[str], list[Number]]:
    """Return a function that reads several numbers with commas between them, each by `read`."""
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
