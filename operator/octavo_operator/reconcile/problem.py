"""A problem of a part of an LLMService, or a remark about it."""

from __future__ import annotations

from dataclasses import dataclass

from octavo_operator.api.conditions import Reason


@dataclass(frozen=True)
class Problem:
    """A reason and its sentence."""

    reason: Reason
    message: str
