"""A problem of a part of an LLMService, or a remark about it."""

from __future__ import annotations

from dataclasses import dataclass

from octavo_operator.api.conditions import Reason


@dataclass(frozen=True)
class Problem:
    """A reason and its sentence."""

    reason: Reason
    message: str


def counted(number: int, one: str, more: str) -> str:
    """Return a number with what is counted: `one`, such as "replica is", or `more`, such as "replicas are"."""
    return f"{number} {one if number == 1 else more}"
