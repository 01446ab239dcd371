"""What was found out about a part of an LLMService."""

from __future__ import annotations

from dataclasses import dataclass

from octavo_operator.api.conditions import Reason


@dataclass(frozen=True)
class Finding:
    """A reason and its sentence."""

    reason: Reason
    message: str
