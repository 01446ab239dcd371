"""Clients' records of their requests, and a checker that finds losses in them; imports nothing of the engine.

After etcd's robustness tests and Jepsen: recording and judging are separate.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Record:
    """One request, as its client knows it."""

    wanted: int
    """Tokens."""
    tokens: list[Any] = field(default_factory=list)
    """Ids, or texts."""
    ends: list[str] = field(default_factory=list)
    """Finish reasons and errors, in the order in which they came."""
    left: bool = False
    """Whether the client went away before an end."""


def losses(records: dict[str, Record], expected: list[Any]) -> list[str]:
    """Return a sentence about each loss: a client that stayed has one end, and with `length` all tokens.

    `expected`: the tokens of a greedy answer without any fault, at least as long as the longest.
    """
    found = []
    for name, record in records.items():
        if record.tokens != expected[: len(record.tokens)]:
            found.append(f"{name} has other tokens than without a fault")
        if record.left:
            if record.ends:
                found.append(f"{name} went away, and has the ends {record.ends}")
            continue
        if len(record.ends) != 1:
            found.append(f"{name} has {len(record.ends)} ends: {record.ends}")
        elif record.ends == ["length"] and len(record.tokens) != record.wanted:
            found.append(f"{name} has {len(record.tokens)} of {record.wanted} tokens, and no error")
    return found
